//! The names of block contents: a hash chain over everything that keys and values depend on.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use crate::ids::{Generation, RequestId, TokenId};

/// Names what is in a full block: the tokens of its positions and of all before, the adapter, and who may share it.
///
/// SHA-256, so that no prompt can be made to meet another one's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHash([u8; 32]);

/// Who may share the blocks of a sequence. Part of the chain's root: sequences in different scopes never meet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CacheScope {
    /// Every sequence with the same adapter.
    #[default]
    Everyone,
    /// Those whose requests name the same salt.
    Salt(String),
    /// The choices of one request: what is left of the prefix cache when it is switched off.
    Request(RequestId),
}

impl BlockHash {
    /// Where the chain of a sequence begins. An adapter is known by its content: a replaced one never meets its
    /// predecessor's blocks, and the same content loaded again finds its own.
    pub fn root(adapter: Option<Generation>, scope: &CacheScope) -> Self {
        let mut hash = Sha256::new_with_prefix("heddle.kv.root.v1");
        // Each extra is its tag and its bytes, both with their length: no two lists of extras read the same.
        let mut extra = |tag: &str, bytes: &[u8]| {
            for part in [tag.as_bytes(), bytes] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        };
        if let Some(generation) = adapter {
            extra("adapter", &generation.0);
        }
        match scope {
            CacheScope::Everyone => {}
            CacheScope::Salt(salt) => extra("salt", salt.as_bytes()),
            CacheScope::Request(request) => extra("request", &request.0.to_le_bytes()),
        }
        Self(hash.finalize().into())
    }

    /// The block after this one, with these tokens: `H(previous, tokens)`.
    pub fn next(&self, tokens: &[TokenId]) -> Self {
        let mut hash = Sha256::new_with_prefix("heddle.kv.block.v1");
        hash.update(self.0);
        for token in tokens {
            hash.update(token.0.to_le_bytes());
        }
        Self(hash.finalize().into())
    }
}

impl Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The bytes are evenly spread already: eight of them tell blocks apart in a map.
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: [u32; 4]) -> Vec<TokenId> {
        ids.map(TokenId).to_vec()
    }

    #[test]
    fn what_keys_and_values_depend_on_changes_the_name() {
        let salt = |salt: &str| CacheScope::Salt(salt.to_owned());
        let one = Generation([1; 32]);
        let roots = [
            BlockHash::root(None, &CacheScope::Everyone),
            BlockHash::root(Some(one), &CacheScope::Everyone),
            BlockHash::root(Some(Generation([2; 32])), &CacheScope::Everyone),
            BlockHash::root(None, &salt("")),
            BlockHash::root(None, &salt("a")),
            BlockHash::root(Some(one), &salt("a")),
            BlockHash::root(None, &CacheScope::Request(RequestId(1))),
            BlockHash::root(None, &CacheScope::Request(RequestId(2))),
            // A salt that spells another extra out is still only a salt.
            BlockHash::root(None, &salt("\u{7}\0\0\0\0\0\0\0adapter")),
        ];
        let mut names: Vec<BlockHash> = roots.to_vec();
        names.extend(roots.iter().map(|root| root.next(&tokens([1, 2, 3, 4]))));
        names.extend(roots.iter().map(|root| root.next(&tokens([1, 2, 4, 3]))));
        names.extend(
            roots
                .iter()
                .map(|root| root.next(&tokens([1, 2, 3, 4])).next(&tokens([1, 2, 3, 4]))),
        );
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{index}");
        }
    }

    #[test]
    fn the_same_content_has_the_same_name() {
        let name = || {
            BlockHash::root(Some(Generation([3; 32])), &CacheScope::Salt("s".to_owned()))
                .next(&tokens([5, 6, 7, 8]))
        };
        assert_eq!(name(), name());
    }
}
