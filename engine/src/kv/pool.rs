//! The blocks of the KV cache: who uses them and what is in them.

use std::collections::HashMap;

use super::{BlockHash, list::List};
use crate::ids::BlockId;

/// All blocks of a KV cache. A block is in use by one sequence or more, or free; a free block may still have content that
/// the next sequence can take over.
#[derive(Debug)]
pub struct BlockPool {
    slots: Vec<Slot>,
    /// Where each known content is. Every entry is the `content` of its slot, and the other way round.
    index: HashMap<BlockHash, BlockId>,
    /// Blocks that nobody uses, in the order in which they are given out again.
    free: List,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    users: u32,
    content: Option<BlockHash>,
}

impl BlockPool {
    /// A pool of so many blocks, all free and without content.
    pub fn new(blocks: usize) -> Self {
        let mut free = List::new(blocks);
        for block in 0..blocks as u32 {
            free.push_back(block);
        }
        Self {
            slots: vec![Slot::default(); blocks],
            index: HashMap::new(),
            free,
        }
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no block at all.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Blocks that nobody uses.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that somebody uses.
    pub fn used(&self) -> usize {
        self.len() - self.free()
    }

    /// Takes a free block for one user. What was in it is forgotten.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = BlockId(self.free.pop_front()?);
        let slot = self.slot(block);
        slot.users = 1;
        if let Some(content) = slot.content.take() {
            self.index.remove(&content);
        }
        Some(block)
    }

    /// The block that has this content.
    pub fn find(&self, content: &BlockHash) -> Option<BlockId> {
        self.index.get(content).copied()
    }

    /// How many use a block.
    pub fn users(&self, block: BlockId) -> u32 {
        self.slots[block.0 as usize].users
    }

    /// Makes one more a user of a block that [`Self::find`] found.
    pub fn share(&mut self, block: BlockId) {
        let slot = self.slot(block);
        debug_assert!(
            slot.content.is_some(),
            "only blocks with a known content are shared"
        );
        slot.users += 1;
        if slot.users == 1 {
            self.free.remove(block.0);
        }
    }

    /// Lets go of a block for one user. Whoever releases several does so from the tail, so that tails go first.
    pub fn release(&mut self, block: BlockId) {
        let slot = self.slot(block);
        debug_assert!(
            slot.users > 0,
            "block {} is released more often than it was taken",
            block.0
        );
        slot.users -= 1;
        if slot.users == 0 {
            if slot.content.is_some() {
                self.free.push_back(block.0);
            } else {
                self.free.push_front(block.0);
            }
        }
    }

    /// Makes a block that is in use, and full, known by its content. Where another block has the same content already that
    /// one stays the known one.
    pub fn publish(&mut self, block: BlockId, content: BlockHash) {
        debug_assert!(self.users(block) > 0, "block {} is published by nobody", block.0);
        if self.slots[block.0 as usize].content.is_none() {
            self.index.entry(content).or_insert_with(|| {
                self.slots[block.0 as usize].content = Some(content);
                block
            });
        }
    }

    fn slot(&mut self, block: BlockId) -> &mut Slot {
        &mut self.slots[block.0 as usize]
    }

    /// Compares the pool with itself and with the block tables of all its users.
    ///
    /// # Errors
    /// What does not agree, in words.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a [BlockId]>) -> Result<(), String> {
        let mut users = vec![0; self.len()];
        for block in tables.flatten() {
            *users
                .get_mut(block.0 as usize)
                .ok_or_else(|| format!("a table names block {} of {}", block.0, self.len()))? += 1;
        }
        for (number, slot) in self.slots.iter().enumerate() {
            if slot.users != users[number] {
                let (counted, found) = (slot.users, users[number]);
                return Err(format!(
                    "block {number} counts {counted} users and is in {found} tables"
                ));
            }
            if (slot.users == 0) != self.free.contains(number as u32) {
                return Err(format!(
                    "block {number} has {} users and is listed wrongly",
                    slot.users
                ));
            }
            if let Some(content) = &slot.content
                && self.find(content) != Some(BlockId(number as u32))
            {
                return Err(format!("the content of block {number} leads to another block"));
            }
        }
        let listed = self.free.iter().count();
        if listed != self.free() {
            return Err(format!(
                "the free list counts {} blocks and has {listed}",
                self.free()
            ));
        }
        let known = self.slots.iter().filter(|slot| slot.content.is_some()).count();
        if known != self.index.len() {
            return Err(format!(
                "{known} blocks have content and {} are known",
                self.index.len()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::TokenId, kv::CacheScope};

    fn content(number: u32) -> BlockHash {
        BlockHash::root(None, &CacheScope::Everyone).next(&[TokenId(number)])
    }

    #[test]
    fn gives_out_each_block_once() {
        let mut pool = BlockPool::new(3);
        let taken: Vec<BlockId> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken, [BlockId(0), BlockId(1), BlockId(2)]);
        assert_eq!((pool.free(), pool.used()), (0, 3));
        pool.release(BlockId(1));
        assert_eq!((pool.take(), pool.take()), (Some(BlockId(1)), None));
        pool.check_integrity([taken.as_slice()].into_iter()).unwrap();
        assert!(
            pool.check_integrity([&taken[1..]].into_iter()).is_err(),
            "block 0 leaks"
        );
    }

    #[test]
    fn a_free_block_keeps_its_content_until_its_memory_is_needed() {
        let mut pool = BlockPool::new(2);
        let block = pool.take().unwrap();
        pool.publish(block, content(1));
        pool.release(block);
        assert_eq!(pool.find(&content(1)), Some(block));

        let empty = pool.take().unwrap();
        assert_ne!(empty, block, "a block without content goes first");
        pool.share(block);
        assert_eq!((pool.users(block), pool.take()), (1, None));
        pool.release(block);
        assert_eq!(pool.take(), Some(block));
        assert_eq!(pool.find(&content(1)), None);
        pool.check_integrity([[empty, block].as_slice()].into_iter())
            .unwrap();
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<BlockId> = std::iter::from_fn(|| pool.take()).collect();
        for (&block, number) in blocks.iter().zip(0..) {
            pool.publish(block, content(number));
            pool.release(block);
        }
        // Block 0 is used again: 1 is the oldest now.
        pool.share(blocks[0]);
        pool.release(blocks[0]);
        let order: Vec<BlockId> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(order, [blocks[1], blocks[2], blocks[0]]);
    }

    #[test]
    fn the_first_block_with_a_content_stays_the_known_one() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        pool.publish(first, content(1));
        pool.publish(second, content(1));
        pool.publish(first, content(1));
        assert_eq!(pool.find(&content(1)), Some(first));
        pool.release(second);
        assert_eq!(pool.find(&content(1)), Some(first));
        pool.check_integrity([[first].as_slice()].into_iter()).unwrap();
    }
}
