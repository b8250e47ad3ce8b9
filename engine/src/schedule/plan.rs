//! The plan of one step: admit, share rows, take blocks.

use super::{Admitted, PlannedSpan, Sequence, State, StepPlan, accounts::INPUT_WEIGHT, sequence::Seniority};

/// Decides what the next step computes. See the [module](super) for the rules.
///
/// The plan is a promise: its positions have blocks now, and [`State::settle`] is to be called when they are computed. If
/// computing them failed, [`State::remove`] its sequences instead.
pub fn plan(state: &mut State) -> StepPlan {
    let mut plan = StepPlan::default();
    state.step += 1;
    state.rank_running();
    loop {
        state.admit(&mut plan);
        let shares = state.share_rows();
        state.take_blocks(&shares, &mut plan);
        // Rarely nothing comes of it: the only one that ran was refused, or those whose adapters had their turn stand still for
        // want of blocks. The turn of the most senior comes, and it preempts the others.
        let stuck = plan.spans.is_empty() && !(state.running.is_empty() && state.next_waiting().is_none());
        if !stuck {
            return plan;
        }
    }
}

impl State {
    // ---- Order ----

    fn seniority(&self, sequence: &Sequence) -> Seniority {
        sequence.seniority(self.step, self.limits.ageing_steps, 0)
    }

    /// Puts the running sequences in order: the most senior first.
    fn rank_running(&mut self) {
        let (step, ageing_steps) = (self.step, self.limits.ageing_steps);
        self.running
            .sort_unstable_by_key(|sequence| sequence.seniority(step, ageing_steps, 0));
    }

    /// The waiting sequence whose turn it is, of those that could run.
    fn next_waiting(&self) -> Option<usize> {
        let turn = |sequence: &Sequence| {
            let served = self.accounts.served(sequence.account);
            sequence.seniority(self.step, self.limits.ageing_steps, served)
        };
        let could_run = self
            .waiting
            .iter()
            .enumerate()
            .filter(|(_, sequence)| sequence.after.is_none());
        could_run
            .min_by_key(|(_, sequence)| turn(sequence))
            .map(|(index, _)| index)
    }

    // ---- Admission ----

    /// Starts waiting sequences, strictly in turn, while there is room.
    fn admit(&mut self, plan: &mut StepPlan) {
        while let Some(next) = self.next_waiting() {
            if self.waiting[next].blocks_needed() > self.pool.len() {
                let sequence = self.waiting.swap_remove(next);
                self.refuse(sequence, plan);
            } else if self.has_room(next) || self.make_room(next, plan) {
                self.start(next, plan);
            } else {
                break;
            }
        }
    }

    /// Whether the waiting sequence could run beside those that do.
    fn has_room(&mut self, next: usize) -> bool {
        let blocks = self.blocks_to_take(next);
        self.fits(&self.waiting[next], blocks, &self.running, self.pool.free())
    }

    /// Free blocks that the waiting sequence would take for the tokens that it has.
    fn blocks_to_take(&mut self, next: usize) -> usize {
        let sequence = &mut self.waiting[next];
        let hits = if sequence.reuses() {
            sequence.table.find(&sequence.tokens, &self.pool)
        } else {
            Default::default()
        };
        sequence.blocks_needed() - hits.blocks + hits.idle
    }

    /// Whether `sequence`, which would take `blocks` of the `free` ones, fits beside `running`: there is a place, a row is
    /// left over by those that are more senior, and everyone has blocks for what it is and one more to grow.
    fn fits(&self, sequence: &Sequence, blocks: usize, running: &[Sequence], free: usize) -> bool {
        if running.is_empty() {
            return true;
        }
        let seniority = self.seniority(sequence);
        let rows_of = |other: &Sequence| match self.seniority(other) < seniority {
            true => other.pending().min(other.chunk),
            false => 1,
        };
        let rows: usize = running.iter().map(rows_of).sum();
        let promised: usize = running
            .iter()
            .map(|other| other.table.missing(other.tokens.len()) + 1)
            .sum();
        running.len() < self.limits.max_running && rows < self.limits.step_tokens && blocks + promised <= free
    }

    /// Preempts running sequences of lower priority that have not aged, if that gives the waiting one room.
    fn make_room(&mut self, next: usize, plan: &mut StepPlan) -> bool {
        let priority = self.waiting[next].priority;
        let keep = self
            .running
            .partition_point(|other| self.is_aged(other) || other.priority >= priority);
        let (stay, go) = self.running.split_at(keep);
        let freed = go.iter().flat_map(|other| other.table.blocks());
        let freed = freed.filter(|&&block| self.pool.users(block) == 1).count();
        if go.is_empty() {
            return false;
        }
        let stay_fits = |blocks| self.fits(&self.waiting[next], blocks, stay, self.pool.free() + freed);
        if !stay_fits(self.waiting[next].blocks_needed()) {
            return false;
        }
        while !self.has_room(next) && self.running.len() > keep {
            self.preempt_last(plan);
        }
        self.has_room(next)
    }

    fn start(&mut self, next: usize, plan: &mut StepPlan) {
        let mut sequence = self.waiting.swap_remove(next);
        if sequence.reuses() {
            let hits = sequence.table.find(&sequence.tokens, &self.pool);
            sequence.computed = sequence
                .table
                .take_over(hits.blocks, &sequence.tokens, &mut self.pool);
        }
        // What is computed for the first time is paid for; what the cache has, or had to be computed again, is not.
        let tokens = sequence.tokens.len();
        let due = tokens.saturating_sub(sequence.charged.max(sequence.computed));
        self.accounts.charge(sequence.account, due as u64 * INPUT_WEIGHT);
        sequence.charged = tokens;
        plan.admitted.push(Admitted {
            sequence: sequence.id,
            tokens,
            reused: sequence.computed,
        });
        let seniority = self.seniority(&sequence);
        let place = self
            .running
            .partition_point(|other| self.seniority(other) < seniority);
        self.running.insert(place, sequence);
    }

    // ---- Rows ----

    /// Rows for each running sequence. Every decoding sequence whose adapter is in the step has one; there are never more of
    /// them than rows.
    fn share_rows(&mut self) -> Vec<usize> {
        let wanted = self.running.iter().filter_map(|sequence| sequence.adapter);
        let chosen = self.rotation.choose(wanted, self.limits.step_adapter_bytes);
        let takes_part = |sequence: &Sequence| {
            sequence
                .adapter
                .is_none_or(|adapter| chosen.contains(&adapter.generation))
        };
        let mut left = self.limits.step_tokens;
        let mut shares = vec![0; self.running.len()];
        for decoding in [true, false] {
            for (share, sequence) in shares.iter_mut().zip(&self.running) {
                if sequence.decodes() == decoding && takes_part(sequence) {
                    *share = sequence.pending().min(sequence.chunk).min(left);
                    left -= *share;
                }
            }
        }
        shares
    }

    // ---- Blocks ----

    /// Takes the blocks that the rows need, preempting from the most junior up.
    fn take_blocks(&mut self, shares: &[usize], plan: &mut StepPlan) {
        let mut index = 0;
        while index < self.running.len() {
            let wanted = self.running[index].computed + shares[index];
            while self.running[index].table.missing(wanted) > self.pool.free()
                && index + 1 < self.running.len()
            {
                self.preempt_last(plan);
            }
            let alone = self.running.len() == 1;
            let sequence = &mut self.running[index];
            sequence.table.grow(wanted, &mut self.pool);
            let rows = shares[index].min(sequence.table.capacity() - sequence.computed);
            if rows > 0 {
                plan.spans.push(PlannedSpan {
                    sequence: sequence.id,
                    start: sequence.computed,
                    rows,
                    complete: rows == sequence.pending(),
                });
            } else if shares[index] > 0 && alone {
                let sequence = self.running.remove(index);
                self.refuse(sequence, plan);
                continue;
            }
            index += 1;
        }
    }

    fn preempt_last(&mut self, plan: &mut StepPlan) {
        if let Some(mut sequence) = self.running.pop() {
            sequence.table.release(&mut self.pool);
            sequence.computed = 0;
            plan.preempted.push(sequence.id);
            self.waiting.push(sequence);
        }
    }

    /// Drops a sequence that has no place even in an empty cache.
    fn refuse(&mut self, mut sequence: Sequence, plan: &mut StepPlan) {
        sequence.table.release(&mut self.pool);
        self.accounts.leave(sequence.account);
        plan.refused.push(sequence.id);
        self.start_followers(sequence.id);
    }
}
