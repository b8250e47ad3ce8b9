//! Which adapters a step reads, when not all of them fit.

use std::collections::HashMap;

use super::StepAdapter;
use crate::ids::Generation;

/// The adapters of the running sequences, in the order in which they have a claim to the next step.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    queue: Vec<Generation>,
}

impl Rotation {
    /// Chooses of `wanted` (which may repeat) as many as fit into `limit` bytes, and at least one. Those that are left out
    /// go before the others next time; new ones queue at the end, so that nobody gets ahead by leaving and coming back.
    pub(super) fn choose(
        &mut self,
        wanted: impl Iterator<Item = StepAdapter>,
        limit: usize,
    ) -> Vec<Generation> {
        let mut bytes = HashMap::new();
        let mut new = Vec::new();
        for adapter in wanted {
            if bytes.insert(adapter.generation, adapter.bytes).is_none()
                && !self.queue.contains(&adapter.generation)
            {
                new.push(adapter.generation);
            }
        }
        self.queue.retain(|generation| bytes.contains_key(generation));
        self.queue.append(&mut new);

        let mut left = limit;
        let (mut chosen, mut others) = (Vec::new(), Vec::new());
        for &generation in &self.queue {
            let size = bytes[&generation];
            if chosen.is_empty() || size <= left {
                left = left.saturating_sub(size);
                chosen.push(generation);
            } else {
                others.push(generation);
            }
        }
        others.extend(&chosen);
        self.queue = others;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(number: u8, bytes: usize) -> StepAdapter {
        StepAdapter {
            generation: Generation([number; 32]),
            bytes,
        }
    }

    fn choose(rotation: &mut Rotation, wanted: &[StepAdapter], limit: usize) -> Vec<u8> {
        let chosen = rotation.choose(wanted.iter().copied(), limit);
        chosen.iter().map(|generation| generation.0[0]).collect()
    }

    #[test]
    fn takes_all_that_fit() {
        let wanted = [adapter(1, 10), adapter(2, 10), adapter(1, 10)];
        assert_eq!(choose(&mut Rotation::default(), &wanted, 20), [1, 2]);
    }

    #[test]
    fn those_left_out_come_next() {
        let mut rotation = Rotation::default();
        let wanted = [adapter(1, 10), adapter(2, 10), adapter(3, 10)];
        let steps: Vec<_> = (0..3).map(|_| choose(&mut rotation, &wanted, 20)).collect();
        assert_eq!(steps, [[1, 2], [3, 1], [2, 3]]);
    }

    #[test]
    fn one_that_is_too_large_has_a_step_to_itself_and_every_one_a_turn() {
        let mut rotation = Rotation::default();
        let wanted = [adapter(1, 10), adapter(2, 1000), adapter(3, 10), adapter(4, 15)];
        let mut last = [0; 5];
        for step in 1..100 {
            let chosen = choose(&mut rotation, &wanted, 20);
            assert!(!chosen.contains(&2) || chosen == [2]);
            for number in chosen {
                assert!(
                    step - last[number as usize] <= wanted.len(),
                    "adapter {number} in step {step}"
                );
                last[number as usize] = step;
            }
        }
    }

    #[test]
    fn coming_back_is_no_way_to_get_ahead() {
        let mut rotation = Rotation::default();
        let (leaver, stayer) = (adapter(1, 10), adapter(2, 10));
        assert_eq!(choose(&mut rotation, &[leaver, stayer], 10), [1]);
        choose(&mut rotation, &[], 10);
        assert_eq!(choose(&mut rotation, &[stayer], 10), [2]);
        let mut waits = 0;
        for _ in 0..10 {
            // The leaver's sequence ends after each step, and another one comes.
            let chosen = choose(&mut rotation, &[leaver, stayer], 10);
            waits = if chosen == [2] { 0 } else { waits + 1 };
            assert!(waits <= 1);
            if chosen == [1] {
                choose(&mut rotation, &[stayer], 10);
            }
        }
    }
}
