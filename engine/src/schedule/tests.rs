//! The rules of scheduling, one by one.

use super::*;
use crate::{
    ids::{BLOCK_TOKENS, Generation, RequestId, Tenant, TokenId},
    kv::CacheScope,
};

const ROOMY: Limits = Limits {
    step_tokens: 64,
    max_running: 8,
    step_adapter_bytes: usize::MAX,
    ageing_steps: 1000,
};

/// A sequence with a prompt of its own.
fn sequence(id: u64, prompt: usize) -> NewSequence {
    NewSequence {
        id: SequenceId(id),
        tenant: Tenant("t".to_owned()),
        priority: 0,
        prompt: (0..prompt as u32)
            .map(|place| TokenId(place + 1000 * id as u32))
            .collect(),
        scope: CacheScope::Everyone,
        adapter: AdapterNeed::Ready(None),
        after: None,
        chunk: usize::MAX,
        whole_prompt: false,
    }
}

fn with_priority(id: u64, prompt: usize, priority: i32) -> NewSequence {
    NewSequence {
        priority,
        ..sequence(id, prompt)
    }
}

fn of_tenant(id: u64, prompt: usize, tenant: &str) -> NewSequence {
    NewSequence {
        tenant: Tenant(tenant.to_owned()),
        ..sequence(id, prompt)
    }
}

fn adapter(number: u8, bytes: usize) -> StepAdapter {
    StepAdapter {
        generation: Generation([number; 32]),
        bytes,
    }
}

fn with_adapter(id: u64, prompt: usize, adapter: StepAdapter) -> NewSequence {
    NewSequence {
        adapter: AdapterNeed::Ready(Some(adapter)),
        ..sequence(id, prompt)
    }
}

/// Plans and computes a step; those that are complete get a token. Returns the rows of each sequence.
fn step(state: &mut State) -> Vec<(u64, usize)> {
    let plan = plan(state);
    finish(state, &plan)
}

fn finish(state: &mut State, plan: &StepPlan) -> Vec<(u64, usize)> {
    state.settle(plan);
    for span in plan.spans.iter().filter(|span| span.complete) {
        state.push(span.sequence, TokenId(7));
    }
    state.check_integrity().unwrap();
    plan.spans
        .iter()
        .map(|span| (span.sequence.0, span.rows))
        .collect()
}

fn ids(admitted: &[Admitted]) -> Vec<u64> {
    admitted.iter().map(|admitted| admitted.sequence.0).collect()
}

#[test]
fn decode_rows_and_prefill_chunks_share_one_budget() {
    let mut state = State::new(
        Limits {
            step_tokens: 8,
            ..ROOMY
        },
        100,
    );
    state.insert(sequence(1, 4));
    assert_eq!(step(&mut state), [(1, 4)]);
    state.insert(sequence(2, 20));
    assert_eq!(step(&mut state), [(1, 1), (2, 7)]);
    assert_eq!(step(&mut state), [(1, 1), (2, 7)]);
    assert_eq!(step(&mut state), [(1, 1), (2, 6)], "20 = 7 + 7 + 6");
    assert_eq!(step(&mut state), [(1, 1), (2, 1)], "both decode");
}

#[test]
fn no_sequence_takes_more_rows_than_its_own_limit() {
    let mut state = State::new(ROOMY, 100);
    state.insert(NewSequence {
        chunk: 3,
        ..sequence(1, 7)
    });
    state.insert(sequence(2, 7));
    assert_eq!(step(&mut state), [(1, 3), (2, 7)]);
}

#[test]
fn higher_priority_starts_first_then_who_came_first() {
    let mut state = State::new(
        Limits {
            max_running: 3,
            ..ROOMY
        },
        100,
    );
    for (id, priority) in [(1, 0), (2, 5), (3, 0), (4, 5), (5, -1)] {
        state.insert(with_priority(id, 4, priority));
    }
    assert_eq!(ids(&plan(&mut state).admitted), [2, 4, 1]);
}

#[test]
fn higher_priority_takes_the_place_of_the_lowest_but_not_of_its_equals() {
    let mut state = State::new(
        Limits {
            max_running: 3,
            ..ROOMY
        },
        100,
    );
    for (id, priority) in [(1, 0), (2, 0), (3, 1)] {
        state.insert(with_priority(id, 20, priority));
    }
    step(&mut state);
    state.insert(with_priority(4, 4, 1));
    let plan = plan(&mut state);
    assert_eq!(
        plan.preempted,
        [SequenceId(2)],
        "the lowest, and of those the latest"
    );
    assert_eq!(ids(&plan.admitted), [4]);
    finish(&mut state, &plan);
    // Its place is kept: it comes back first, and finds its full block in the cache.
    state.insert(sequence(5, 4));
    state.remove(SequenceId(4));
    let plan = super::plan(&mut state);
    assert_eq!(
        plan.admitted,
        [Admitted {
            sequence: SequenceId(2),
            tokens: 21,
            reused: BLOCK_TOKENS
        }]
    );
}

#[test]
fn age_goes_before_priority() {
    let limits = Limits {
        max_running: 1,
        ageing_steps: 10,
        ..ROOMY
    };
    let mut state = State::new(limits, 100);
    state.insert(with_priority(0, 4, -5));
    // A new one of higher priority comes in every step, and each takes two.
    let mut started = 0;
    for id in 1..40 {
        state.insert(with_priority(id, 4, 5));
        let plan = plan(&mut state);
        finish(&mut state, &plan);
        if plan
            .admitted
            .iter()
            .any(|admitted| admitted.sequence == SequenceId(0))
        {
            started = id;
            break;
        }
        if id % 2 == 0
            && let Some(sequence) = state.running.first().map(Sequence::id)
        {
            state.remove(sequence);
        }
    }
    assert_eq!(
        started, 11,
        "the first step in which it has aged and a place is free"
    );
    for id in 50..60 {
        state.insert(with_priority(id, 4, 5));
        assert_eq!(step(&mut state), [(0, 1)], "and it is not preempted any more");
    }
}

/// Sheng et al., theorem 4.4: while both have work, the service of two tenants differs by at most
/// `2 * max(input tokens of a request * 1, tokens that run at a time * 2)`.
#[test]
fn tenants_are_served_alike_while_both_have_work() {
    const PROMPT: u64 = 30;
    const RUNNING: u64 = 4;
    const LONGEST: u64 = 30;
    let limits = Limits {
        max_running: RUNNING as usize,
        ..ROOMY
    };
    let mut state = State::new(limits, 100);
    // One floods, with answers three times as long.
    for id in 0..300 {
        state.insert(of_tenant(
            id,
            PROMPT as usize,
            if id % 10 == 0 { "few" } else { "many" },
        ));
    }
    let mut left: std::collections::HashMap<u64, u64> = (0..300)
        .map(|id| (id, if id % 10 == 0 { 10 } else { LONGEST }))
        .collect();
    let mut served = [0_u64; 2];
    let mut steps = 0;
    while state
        .waiting
        .iter()
        .any(|sequence| sequence.id.0.is_multiple_of(10))
    {
        let plan = plan(&mut state);
        let tenant = |id: SequenceId| usize::from(!id.0.is_multiple_of(10));
        for admitted in &plan.admitted {
            served[tenant(admitted.sequence)] += (admitted.tokens - admitted.reused) as u64;
        }
        finish(&mut state, &plan);
        for span in plan.spans.iter().filter(|span| span.complete) {
            served[tenant(span.sequence)] += 2;
            let left = left.get_mut(&span.sequence.0).unwrap();
            *left -= 1;
            if *left == 0 {
                state.remove(span.sequence);
            }
        }
        steps += 1;
        let bound = 2 * PROMPT.max(RUNNING * LONGEST * 2);
        assert!(
            served[0].abs_diff(served[1]) <= bound,
            "{served:?} after {steps} steps"
        );
    }
    assert!(served[0] > 1000 && steps > 100, "{served:?} in {steps} steps");
}

#[test]
fn without_a_tenant_the_adapter_counts() {
    let mut state = State::new(
        Limits {
            max_running: 1,
            ..ROOMY
        },
        100,
    );
    let nobody = |id, number: u8| NewSequence {
        tenant: Tenant(String::new()),
        ..with_adapter(id, 4, adapter(number, 1))
    };
    for id in 0..3 {
        state.insert(nobody(id, 1));
    }
    state.insert(nobody(3, 2));
    let mut order = Vec::new();
    for _ in 0..4 {
        let plan = plan(&mut state);
        order.extend(ids(&plan.admitted));
        state.remove(plan.spans[0].sequence);
    }
    assert_eq!(order, [0, 3, 1, 2], "the other adapter's only one goes second");
}

#[test]
fn the_large_are_not_starved_by_the_small() {
    let mut state = State::new(ROOMY, 10);
    state.insert(sequence(1, 60));
    step(&mut state);
    state.insert(sequence(2, 7 * BLOCK_TOKENS));
    state.insert(sequence(3, 4));
    assert_eq!(
        step(&mut state),
        [(1, 1)],
        "the third would fit, and waits for the second"
    );
    state.remove(SequenceId(1));
    assert_eq!(step(&mut state)[0].0, 2);
}

#[test]
fn when_blocks_run_out_the_latest_is_preempted_and_goes_on_where_it_was() {
    let mut state = State::new(ROOMY, 4);
    state.insert(sequence(1, 16));
    state.insert(sequence(2, 15));
    // 1 takes a third block at 33 tokens, 2 a second one at 17: one of both is too many.
    let preempted = loop {
        let plan = plan(&mut state);
        finish(&mut state, &plan);
        if !plan.preempted.is_empty() {
            break plan.preempted;
        }
    };
    assert_eq!(preempted, [SequenceId(2)]);
    let waiting = &state.waiting[0];
    let tokens = waiting.tokens.clone();
    assert!(tokens.len() > 15 && waiting.computed == 0);
    state.remove(SequenceId(1));
    let plan = plan(&mut state);
    assert_eq!(plan.admitted[0].sequence, SequenceId(2));
    assert_eq!(
        state.running[0].tokens, tokens,
        "nothing that was generated is lost"
    );
}

#[test]
fn what_does_not_fit_into_the_whole_cache_is_refused_and_others_go_on() {
    let mut state = State::new(ROOMY, 2);
    state.insert(sequence(1, 2 * BLOCK_TOKENS + 1));
    state.insert(sequence(2, 2 * BLOCK_TOKENS));
    state.insert(sequence(3, 4));
    let first = plan(&mut state);
    assert_eq!(first.refused, [SequenceId(1)]);
    assert_eq!(finish(&mut state, &first), [(2, 32)]);
    // The second has filled the cache with its prompt, and has no room for its first token.
    let second = plan(&mut state);
    assert_eq!(second.refused, [SequenceId(2)]);
    assert_eq!(finish(&mut state, &second), [(3, 4)]);
}

#[test]
fn a_loading_adapter_holds_nobody_up_and_keeps_the_place() {
    let mut state = State::new(
        Limits {
            max_running: 1,
            ..ROOMY
        },
        100,
    );
    state.insert(NewSequence {
        adapter: AdapterNeed::Loading,
        ..sequence(1, 4)
    });
    assert_eq!(plan(&mut state), StepPlan::default(), "nothing can run");
    for id in 2..5 {
        state.insert(sequence(id, 4));
    }
    assert_eq!(step(&mut state), [(2, 4)]);
    state.adapter_ready(SequenceId(1), adapter(1, 10));
    state.remove(SequenceId(2));
    assert_eq!(step(&mut state), [(1, 4)], "it came before 3 and 4");
}

#[test]
fn adapters_that_do_not_fit_together_take_turns() {
    let mut state = State::new(
        Limits {
            step_adapter_bytes: 20,
            ..ROOMY
        },
        100,
    );
    for id in 1..=3 {
        state.insert(with_adapter(id, 4, adapter(id as u8, 10)));
    }
    state.insert(sequence(4, 4));
    let rows: Vec<Vec<u64>> = (0..4)
        .map(|_| step(&mut state).into_iter().map(|(id, _)| id).collect())
        .collect();
    assert_eq!(
        rows,
        [[1, 2, 4], [1, 3, 4], [2, 3, 4], [1, 2, 4]],
        "and the base model is in every step"
    );
}

#[test]
fn choices_share_the_blocks_of_their_prompt() {
    for scope in [CacheScope::Everyone, CacheScope::Request(RequestId(1))] {
        let mut state = State::new(ROOMY, 100);
        let prompt = 2 * BLOCK_TOKENS + 3;
        for id in 0..3 {
            let after = (id > 0).then_some(SequenceId(0));
            let prompt = sequence(0, prompt).prompt;
            state.insert(NewSequence {
                prompt,
                after,
                scope: scope.clone(),
                ..sequence(id, 1)
            });
        }
        assert_eq!(step(&mut state), [(0, prompt)]);
        assert_eq!(step(&mut state), [(0, 1), (1, 3), (2, 3)]);
        assert_eq!(
            state.pool().used(),
            2 + 3,
            "the two full blocks once, the last one for each"
        );

        let other = CacheScope::Request(RequestId(2));
        state.insert(NewSequence {
            prompt: sequence(0, prompt).prompt,
            scope: other,
            ..sequence(9, 1)
        });
        assert_eq!(
            plan(&mut state).admitted[0].reused,
            0,
            "another request shares nothing"
        );
    }
}

#[test]
fn siblings_go_on_when_the_first_is_gone() {
    let mut state = State::new(ROOMY, 100);
    state.insert(sequence(1, 100));
    state.insert(NewSequence {
        after: Some(SequenceId(1)),
        ..sequence(2, 20)
    });
    assert_eq!(step(&mut state), [(1, 64)]);
    state.remove(SequenceId(1));
    assert_eq!(step(&mut state), [(2, 20)]);
}

#[test]
fn a_whole_prompt_is_computed_where_its_logits_are_wanted() {
    let mut state = State::new(ROOMY, 100);
    state.insert(sequence(1, 40));
    step(&mut state);
    let again = |id, whole_prompt| NewSequence {
        prompt: sequence(1, 40).prompt,
        whole_prompt,
        ..sequence(id, 1)
    };
    state.insert(again(2, true));
    assert_eq!(step(&mut state), [(1, 1), (2, 40)]);
    state.insert(again(3, false));
    assert_eq!(step(&mut state), [(1, 1), (2, 1), (3, 8)]);
}

#[test]
fn the_next_turn_finds_the_answer_of_the_last_one() {
    let mut state = State::new(ROOMY, 100);
    state.insert(sequence(1, 20));
    for _ in 0..30 {
        step(&mut state);
    }
    let tokens = state.running[0].tokens.clone();
    state.remove(SequenceId(1));
    let next: Vec<TokenId> = tokens.iter().copied().chain([TokenId(1), TokenId(2)]).collect();
    state.insert(NewSequence {
        prompt: next,
        ..sequence(2, 1)
    });
    let plan = plan(&mut state);
    assert_eq!(
        (tokens.len(), plan.admitted[0].reused),
        (50, 48),
        "three full blocks, two thirds of it generated"
    );
}
