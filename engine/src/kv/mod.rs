//! Paged KV blocks and the prefix cache.
//!
//! A block holds the keys and values of [`crate::ids::BLOCK_TOKENS`] consecutive positions. [`BlockPool`] counts who uses
//! each block and remembers the content of full ones by [`BlockHash`], so that a sequence that begins like an earlier one
//! takes over its blocks instead of computing them again. [`BlockTable`] is one sequence's part in it.
//!
//! Only full blocks are ever shared, and a sequence always computes at least its last token itself. So a shared block is
//! never written to, and there is no copy on write.
//!
//! A full block enters the cache when its last position has been computed, whether its tokens were in a prompt or generated:
//! the next turn of a conversation finds the answer of this one. It leaves when its memory is needed: of the blocks that
//! nobody uses, those without content go first, then the least recently used, and of one sequence its tail before its
//! beginning, because a tail is worth nothing without what comes before it.

mod hash;
mod list;
mod pool;
mod table;

pub use hash::{BlockHash, CacheScope};
pub use pool::BlockPool;
pub use table::{BlockTable, Hits};

use crate::ids::BLOCK_TOKENS;

/// Blocks that hold so many positions.
pub fn blocks_for(positions: usize) -> usize {
    positions.div_ceil(BLOCK_TOKENS)
}
