//! LoRA adapters: identity, registry, leases, tiers, and strict loading of the PEFT format.
//!
//! Merging several adapters into one belongs here too, as a maker of [`LoraWeights`] with a [`generation`] of its own.

mod generation;
mod integrity;
mod lease;
mod loader;
mod outcomes;
pub mod peft;
mod registry;
mod slots;
mod stamp;
mod state;
mod tiers;
mod weights;

#[cfg(test)]
mod made;
#[cfg(test)]
mod tests;

pub use generation::generation;
pub use integrity::AdapterStats;
pub use lease::{Lease, LeaseState};
pub use loader::AdapterSource;
pub use registry::{AdapterInfo, AdapterLimits, AdapterRegistry, AdapterRequest};
pub use weights::{LoraPair, LoraSite, LoraWeights, Projection};
