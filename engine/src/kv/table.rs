//! One sequence's blocks.

use super::{BlockHash, BlockPool, blocks_for};
use crate::ids::{BLOCK_TOKENS, BlockId, TokenId};

/// The block table of one sequence: position `p` lives in `blocks()[p / BLOCK_TOKENS]`.
///
/// It must be emptied with [`BlockTable::release`] before it is dropped, or its blocks are lost: it has no way to the
/// pool of its own.
#[derive(Debug)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    /// The content of each full block of the sequence, as far as it was needed. Tokens are only ever appended, so it stays
    /// right when the blocks are given back.
    chain: Vec<BlockHash>,
    root: BlockHash,
    /// How many of `blocks`, from the first, the pool has been told the content of.
    published: usize,
}

/// How much of a sequence the pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hits {
    /// Blocks from the beginning of the sequence.
    pub blocks: usize,
    /// Those of them that nobody uses: taking them over makes so many free blocks fewer.
    pub idle: usize,
}

impl BlockTable {
    /// No blocks yet. `root` is where the sequence's hash chain begins.
    pub fn new(root: BlockHash) -> Self {
        Self {
            blocks: Vec::new(),
            chain: Vec::new(),
            root,
            published: 0,
        }
    }

    /// The blocks, in the order of positions.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Positions that the blocks hold.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * BLOCK_TOKENS
    }

    /// Looks up how much of the sequence `tokens` the pool has. The last token never counts: it has to be computed for its
    /// logits.
    pub fn find(&mut self, tokens: &[TokenId], pool: &BlockPool) -> Hits {
        let shareable = tokens.len().saturating_sub(1) / BLOCK_TOKENS;
        let mut hits = Hits::default();
        while hits.blocks < shareable {
            let content = self.content(hits.blocks, tokens);
            let Some(block) = pool.find(&content) else { break };
            hits.blocks += 1;
            hits.idle += usize::from(pool.users(block) == 0);
        }
        hits
    }

    /// Takes over the first `count` blocks, which [`BlockTable::find`] has just found. Returns how many positions need not
    /// be computed.
    pub fn take_over(&mut self, count: usize, tokens: &[TokenId], pool: &mut BlockPool) -> usize {
        debug_assert!(
            self.blocks.is_empty(),
            "a sequence looks for its beginning before it has blocks"
        );
        for index in 0..count {
            let content = self.content(index, tokens);
            let Some(block) = pool.find(&content) else { break };
            pool.share(block);
            self.blocks.push(block);
        }
        self.published = self.blocks.len();
        self.capacity()
    }

    /// Takes free blocks until `positions` fit, or there are none. Returns whether they fit.
    pub fn grow(&mut self, positions: usize, pool: &mut BlockPool) -> bool {
        while self.capacity() < positions {
            let Some(block) = pool.take() else { return false };
            self.blocks.push(block);
        }
        true
    }

    /// Blocks that are missing until `positions` fit.
    pub fn missing(&self, positions: usize) -> usize {
        blocks_for(positions).saturating_sub(self.blocks.len())
    }

    /// Tells the pool the content of the blocks that have become full, now that the keys and values of the first
    /// `computed` of `tokens` are in their blocks.
    pub fn publish(&mut self, computed: usize, tokens: &[TokenId], pool: &mut BlockPool) {
        for index in self.published..computed / BLOCK_TOKENS {
            let content = self.content(index, tokens);
            pool.publish(self.blocks[index], content);
            self.published = index + 1;
        }
    }

    /// Gives all blocks back, the tail first.
    pub fn release(&mut self, pool: &mut BlockPool) {
        for block in self.blocks.drain(..).rev() {
            pool.release(block);
        }
        self.published = 0;
    }

    /// The content of the `index`-th block, which is full.
    fn content(&mut self, index: usize, tokens: &[TokenId]) -> BlockHash {
        while self.chain.len() <= index {
            let start = self.chain.len() * BLOCK_TOKENS;
            let previous = self.chain.last().unwrap_or(&self.root);
            self.chain
                .push(previous.next(&tokens[start..start + BLOCK_TOKENS]));
        }
        self.chain[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::CacheScope;

    fn table() -> BlockTable {
        BlockTable::new(BlockHash::root(None, &CacheScope::Everyone))
    }

    fn tokens(len: usize) -> Vec<TokenId> {
        (0..len as u32).map(TokenId).collect()
    }

    #[test]
    fn the_next_sequence_takes_over_full_blocks_but_never_its_last_token() {
        let mut pool = BlockPool::new(8);
        let text = tokens(3 * BLOCK_TOKENS);
        let mut first = table();
        assert!(first.grow(text.len(), &mut pool));
        first.publish(text.len() - 1, &text, &mut pool);
        assert_eq!(table().find(&text, &pool).blocks, 2, "the third is not full yet");
        first.publish(text.len(), &text, &mut pool);

        assert_eq!(table().find(&text, &pool), Hits { blocks: 2, idle: 0 });
        let longer = tokens(3 * BLOCK_TOKENS + 1);
        let mut second = table();
        assert_eq!(second.find(&longer, &pool).blocks, 3);
        assert_eq!(second.take_over(3, &longer, &mut pool), 3 * BLOCK_TOKENS);
        assert_eq!(second.blocks(), first.blocks());
        assert_eq!((second.missing(longer.len()), pool.used()), (1, 3));
        pool.check_integrity([first.blocks(), second.blocks()].into_iter())
            .unwrap();

        first.release(&mut pool);
        second.release(&mut pool);
        assert_eq!(table().find(&longer, &pool), Hits { blocks: 3, idle: 3 });
        pool.check_integrity(std::iter::empty()).unwrap();
    }

    #[test]
    fn a_difference_anywhere_before_is_a_miss() {
        let mut pool = BlockPool::new(8);
        let text = tokens(4 * BLOCK_TOKENS);
        let mut first = table();
        first.grow(text.len(), &mut pool);
        first.publish(text.len(), &text, &mut pool);
        let mut other = text.clone();
        other[BLOCK_TOKENS] = TokenId(999);
        assert_eq!(table().find(&other, &pool).blocks, 1);
        other[0] = TokenId(999);
        assert_eq!(table().find(&other, &pool).blocks, 0);
    }

    #[test]
    fn tails_are_forgotten_before_beginnings() {
        let mut pool = BlockPool::new(4);
        let text = tokens(4 * BLOCK_TOKENS);
        let mut first = table();
        first.grow(text.len(), &mut pool);
        first.publish(text.len(), &text, &mut pool);
        first.release(&mut pool);
        let longer = tokens(4 * BLOCK_TOKENS + 1);
        for left in (0..4).rev() {
            pool.take().unwrap();
            assert_eq!(table().find(&longer, &pool).blocks, left);
        }
    }

    #[test]
    fn takes_what_there_is_when_it_does_not_fit() {
        let mut pool = BlockPool::new(2);
        let mut first = table();
        assert!(!first.grow(3 * BLOCK_TOKENS, &mut pool));
        assert_eq!((first.capacity(), pool.free()), (2 * BLOCK_TOKENS, 0));
        first.release(&mut pool);
        assert_eq!(pool.free(), 2);
    }
}
