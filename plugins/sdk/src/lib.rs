//! # heddle-plugin
//!
//! What a plugin for Heddle is written against. A plugin is a type that implements [`Plugin`] and one or more roles
//! ([`Auth`], [`Protocol`], [`Stop`]); [`export!`] makes a component of it:
//!
//! ```
//! use heddle_plugin::{Auth, Credential, Denial, Descriptor, Grant, Identity, Plugin, Target};
//!
//! struct Everybody;
//!
//! impl Plugin for Everybody {
//!     fn describe() -> Descriptor {
//!         Descriptor {
//!             name: "everybody".into(),
//!             version: heddle_plugin::version!(),
//!             description: "Lets everybody in.".into(),
//!             config_schema: None,
//!         }
//!     }
//!     fn configure(_config: &str) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Auth for Everybody {
//!     fn authorize(&self, _: Option<Identity>, _: &Credential, _: &Target) -> Result<Grant, Denial> {
//!         Ok(Grant::new("everybody"))
//!     }
//! }
//!
//! heddle_plugin::export!(Everybody: auth);
//! ```
//!
//! The value that [`Plugin::configure`] returns is the plugin's state. The host keeps a snapshot of the configured
//! memory and starts every request from a copy of it, so the state is parsed once and nothing that a request changes
//! is seen by another.
//!
//! On any target but Wasm, [`export!`] expands to nothing and the host's types ([`RequestHead`], [`Request`], ...)
//! have no host behind them: calling them panics. Keep decisions in functions over plain values, and those can be
//! tested and measured with `cargo test` and `cargo bench`.

#[doc(hidden)]
pub mod bindings;
#[doc(hidden)]
pub mod glue;
pub mod log;
mod role;

pub use bindings::{
    auth::exports::heddle::plugin::auth::{Decision, Denial, Identity},
    imports::heddle::plugin::{
        access::{Grant, SourceCredential, Target},
        clock, generation,
        generation::Request,
        http::{Credential, NotGranted, RequestHead},
        random,
    },
    lifecycle::exports::heddle::plugin::lifecycle::Descriptor,
    protocol::exports::heddle::plugin::protocol::{
        Call, Generated, Model, Outcome, Payload, Problem, ProblemKind, Reply, Route,
    },
    stop::exports::heddle::plugin::stop::Verdict,
};
pub use role::{Auth, Exchange, Matcher, Plugin, Protocol, Stop};

/// The schema of a configuration without settings.
pub const NO_SETTINGS: &str = r#"{"type":"object","additionalProperties":false}"#;

/// Checks the configuration of a plugin without settings.
///
/// # Errors
/// A sentence for the operator, if there are settings.
pub fn no_settings(plugin: &str, config: &str) -> Result<(), String> {
    if config.trim().is_empty()
        || config.split_whitespace().eq(["{}"])
        || config.split_whitespace().eq(["{", "}"])
    {
        Ok(())
    } else {
        Err(format!(
            "`{plugin}` has no settings: its configuration must be empty"
        ))
    }
}

/// Makes a component of a plugin: `export!(MyPlugin: auth)`, `export!(MyPlugin: protocol, stop)`.
///
/// Each role named must be implemented; `lifecycle` comes with [`Plugin`]. Expands to nothing on targets other than
/// Wasm.
#[macro_export]
macro_rules! export {
    ($plugin:ty: $($role:ident),+ $(,)?) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            impl $crate::glue::Configured for $plugin {
                fn cell() -> &'static $crate::glue::Cell<Self> {
                    static CELL: $crate::glue::Cell<$plugin> = $crate::glue::Cell::new();
                    &CELL
                }
            }
            type Exported = $crate::glue::Exported<$plugin>;
            $crate::bindings::lifecycle::export!(Exported with_types_in $crate::bindings::lifecycle);
            $($crate::bindings::$role::export!(Exported with_types_in $crate::bindings::$role);)+
        };
    };
}

/// The version of the package that this is called in. If `HEDDLE_BUILD` was set when it was compiled, that follows
/// behind a `+`, as semver's build metadata.
#[macro_export]
macro_rules! version {
    () => {
        $crate::glue::version(env!("CARGO_PKG_VERSION"), option_env!("HEDDLE_BUILD"))
    };
}
