//! API tokens. Two modes:
//!
//! - `open`, the default, is what LoRAX does: everybody may do everything, and the caller's token is for the adapter's
//!   source.
//! - `tokens` knows callers by the SHA-256 of their tokens, from a table in the configuration. A token carries a
//!   tenant, the adapters that it may use, a priority and limits. It comes in the head (`Authorization: Bearer`,
//!   `x-api-key`) or in the body (`api_token`). A caller whose head is known can send a foreign `api_token`: that one is
//!   then for the adapter's source.
//!
//! ```json
//! {"mode": "tokens", "tokens": [
//!   {"sha256": "…", "tenant": "acme", "subject": "acme-batch", "adapters": ["acme/*"], "base": false,
//!    "priority": -1, "max_tokens": 1000, "max_concurrent": 8}
//! ]}
//! ```
//!
//! The secrets stay in the host: what comes in here is the hash of what a caller sent.

mod config;
pub mod pattern;
mod plugin;
pub mod policy;

pub use plugin::AuthToken;
pub use policy::Policy;
