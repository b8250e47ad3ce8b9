//! LoRA adapters: identity, registry, leases, tiers, and strict loading of the PEFT format.

mod generation;
mod lease;
pub mod peft;
mod registry;
mod weights;

pub use generation::generation;
pub use lease::{Lease, LeaseState};
pub use registry::{AdapterInfo, AdapterLimits, AdapterRegistry, AdapterRequest};
pub use weights::{LoraPair, LoraSite, LoraWeights, Projection};
