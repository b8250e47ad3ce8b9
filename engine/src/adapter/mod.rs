//! LoRA adapters: identity, registry, leases, tiers, and strict loading of the PEFT format.

mod lease;
mod registry;
mod weights;

pub use lease::{Lease, LeaseState};
pub use registry::{AdapterInfo, AdapterLimits, AdapterRegistry, AdapterRequest};
pub use weights::{LoraPair, LoraSite, LoraWeights, Projection};
