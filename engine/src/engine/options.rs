//! The engine's limits.

/// The engine's limits.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Rows of one step, decode and prefill together. A long prompt is taken in by so many tokens at a time, and those who
    /// wait for their next token wait for the whole step.
    pub step_tokens: usize,
    /// Sequences that run at a time; never more than `step_tokens`.
    pub max_running: usize,
    /// Requests that wait at most.
    pub max_waiting: usize,
    /// Bytes of distinct adapters in one step.
    pub step_adapter_bytes: usize,
    /// Whether blocks are shared between sequences with the same beginning. The choices of one request always share.
    pub prefix_cache: bool,
    /// Steps after which a waiting request goes before all that came later, whatever their priority and tenant: see
    /// [`crate::schedule`].
    pub ageing_steps: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            step_tokens: 128,
            max_running: 64,
            max_waiting: 1024,
            step_adapter_bytes: usize::MAX,
            prefix_cache: true,
            ageing_steps: 2000,
        }
    }
}
