//! Pure scheduling: `plan(&mut State) -> StepPlan`, without a tensor, a clock or I/O.
