//! The identity of an adapter's content.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{LoraPair, LoraSite, Projection};
use crate::ids::Generation;

/// Separates these hashes from all others. A change of the encoding below takes a new number.
const DOMAIN: &[u8] = b"heddle adapter generation v1\0";

/// The generation of a set of pairs and, where there is one, a whole output head.
///
/// It is SHA-256 over what the adapter computes, not over how its files spell it: the configuration counts as far as it
/// changes a rank, a scale or a site, and weights count by their value in f32. So an adapter saved in another float
/// format that loses nothing, or with the entries of its configuration in another order, keeps its generation.
///
/// All integers are little-endian; `u64` for lengths. Hashed is, in this order:
/// 1. the domain, `heddle adapter generation v1` and a zero byte;
/// 2. for each pair, in the order of [`LoraSite`]: the byte 1; the site as one byte for its kind (0 embedding, 1 layer, 2 output
///    head), a `u32` layer and one byte for the projection (Q, K, V, O, Gate, Up, Down are 0 to 6), both zero outside of layers;
///    `rank`, `in_features` and `out_features`; the bits of `scale`; SHA-256 of `a` and SHA-256 of `b`, each over the bits of
///    its elements, row by row;
/// 3. for a whole output head: the byte 2, the number of its elements, and SHA-256 of it.
pub fn generation(pairs: &BTreeMap<LoraSite, LoraPair>, lm_head: Option<&[f32]>) -> Generation {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    for (site, pair) in pairs {
        let (kind, layer, projection) = match *site {
            LoraSite::Embed => (0, 0, 0),
            LoraSite::Layer(layer, projection) => (1, layer, projection_byte(projection)),
            LoraSite::LmHead => (2, 0, 0),
        };
        hash.update([1, kind]);
        hash.update(layer.to_le_bytes());
        hash.update([projection]);
        for size in [pair.rank, pair.in_features, pair.out_features] {
            hash.update((size as u64).to_le_bytes());
        }
        hash.update(pair.scale.to_bits().to_le_bytes());
        hash.update(floats(&pair.a));
        hash.update(floats(&pair.b));
    }
    if let Some(head) = lm_head {
        hash.update([2]);
        hash.update((head.len() as u64).to_le_bytes());
        hash.update(floats(head));
    }
    Generation(hash.finalize().into())
}

fn projection_byte(projection: Projection) -> u8 {
    match projection {
        Projection::Q => 0,
        Projection::K => 1,
        Projection::V => 2,
        Projection::O => 3,
        Projection::Gate => 4,
        Projection::Up => 5,
        Projection::Down => 6,
    }
}

/// SHA-256 over the little-endian bits of `values`.
fn floats(values: &[f32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut buffer = [0_u8; 16 * 1024];
    for chunk in values.chunks(buffer.len() / 4) {
        for (bytes, value) in buffer.chunks_exact_mut(4).zip(chunk) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        hash.update(&buffer[..chunk.len() * 4]);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> LoraPair {
        LoraPair {
            rank: 1,
            in_features: 2,
            out_features: 2,
            scale: 2.0,
            a: vec![1.0, 2.0],
            b: vec![3.0, 4.0],
        }
    }

    fn of(site: LoraSite, pair: LoraPair) -> Generation {
        generation(&BTreeMap::from([(site, pair)]), None)
    }

    /// The value was computed with Python's hashlib and struct from the description of the encoding.
    #[test]
    fn the_encoding_is_the_documented_one() {
        let found = of(LoraSite::Layer(3, Projection::Gate), pair());
        assert_eq!(
            found.to_string(),
            "83df821487450f2d131c95486bc6a24454c329ca36c656f77bc8da4e31a08cd3"
        );
    }

    #[test]
    fn everything_that_changes_the_result_changes_it() {
        let base = of(LoraSite::Layer(0, Projection::Q), pair());
        assert_eq!(base, of(LoraSite::Layer(0, Projection::Q), pair()));
        let others = [
            of(LoraSite::Layer(1, Projection::Q), pair()),
            of(LoraSite::Layer(0, Projection::K), pair()),
            of(LoraSite::LmHead, pair()),
            of(LoraSite::Embed, pair()),
            of(
                LoraSite::Layer(0, Projection::Q),
                LoraPair { scale: 1.0, ..pair() },
            ),
            of(
                LoraSite::Layer(0, Projection::Q),
                LoraPair {
                    a: vec![1.0, 2.5],
                    ..pair()
                },
            ),
            of(
                LoraSite::Layer(0, Projection::Q),
                LoraPair {
                    b: vec![4.0, 3.0],
                    ..pair()
                },
            ),
            generation(
                &BTreeMap::from([(LoraSite::Layer(0, Projection::Q), pair())]),
                Some(&[1.0]),
            ),
            generation(&BTreeMap::new(), None),
            generation(&BTreeMap::new(), Some(&[])),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, base);
            assert!(!others[..index].contains(other), "case {index}");
        }
    }

    #[test]
    fn long_tensors_are_hashed_whole() {
        let mut long = vec![0.5; 10_001];
        let before = floats(&long);
        long[10_000] = 0.25;
        assert_ne!(before, floats(&long));
    }
}
