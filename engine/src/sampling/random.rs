//! The generator behind sampling: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
//! 3", SC 2011). It is a function of a key and a counter and has no state, so a number that belongs to a position is
//! the same whether the position is computed once, again after preemption, or ahead of time by speculation.

/// Philox's multipliers.
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What the key grows by from round to round: the golden ratio and the square root of 3, less 1.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four words for a counter and a key.
fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let left = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let right = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (right >> 32) as u32 ^ counter[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ counter[3] ^ key[1],
            left as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The number in `[0, 1)` that belongs to a position of a choice: 53 random bits.
pub(super) fn uniform(seed: u64, choice: u32, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, choice, 0];
    let words = philox4x32_10(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers for `philox4x32 10` in the Random123 distribution (`kat_vectors`).
    #[test]
    fn gives_the_published_words() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn every_part_of_the_key_changes_the_number() {
        let base = uniform(1, 2, 3);
        assert!((0.0..1.0).contains(&base));
        assert_eq!(base, uniform(1, 2, 3));
        for other in [
            uniform(2, 2, 3),
            uniform(1 << 40, 2, 3),
            uniform(1, 3, 3),
            uniform(1, 2, 4),
            uniform(1, 2, 3 | 1 << 40),
        ] {
            assert_ne!(base, other);
        }
    }

    /// Chi-square over 16 equal cells, 15 degrees of freedom: 37.7 is the 0.1 % point. Neighbouring positions,
    /// choices and seeds are what the engine uses, so each is tried as the axis.
    #[test]
    fn is_uniform_along_each_axis() {
        let axes: [fn(u64) -> f64; 3] = [
            |i| uniform(7, 0, i),
            |i| uniform(7, i as u32, 0),
            |i| uniform(i, 0, 0),
        ];
        for axis in axes {
            let mut cells = [0_u32; 16];
            for i in 0..16_000 {
                cells[(axis(i) * 16.0) as usize] += 1;
            }
            let chi: f64 = cells
                .iter()
                .map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0)
                .sum();
            assert!(chi < 37.7, "{chi} over {cells:?}");
        }
    }
}
