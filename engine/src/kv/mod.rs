//! Paged KV blocks and the prefix cache.
