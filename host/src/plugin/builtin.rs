//! The components that ship, in the binary. `plugins/dist/` is built from `plugins/` and committed.

use super::contract::Role;

/// A component of the binary's.
pub(super) struct Builtin {
    /// The name by which `component` of a slot chooses it.
    pub name: &'static str,
    /// The component.
    pub bytes: &'static [u8],
}

macro_rules! builtins {
    ($($name:literal),* $(,)?) => {
        &[$(Builtin {
            name: $name,
            bytes: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/dist/", $name, ".wasm")),
        }),*]
    };
}

/// All of them.
pub(super) const BUILTINS: &[Builtin] = builtins!["openai", "auth-token", "stop"];

/// A slot that is there without being configured.
pub(super) struct DefaultSlot {
    pub slot: &'static str,
    pub component: &'static str,
    /// What the slot is for: any component in it must have this role.
    pub role: Role,
}

/// The slots that every server has.
pub(super) const DEFAULT_SLOTS: &[DefaultSlot] = &[
    DefaultSlot {
        slot: "openai",
        component: "openai",
        role: Role::Protocol,
    },
    DefaultSlot {
        slot: "auth",
        component: "auth-token",
        role: Role::Auth,
    },
    DefaultSlot {
        slot: "stop",
        component: "stop",
        role: Role::Stop,
    },
];

/// The component of that name.
pub(super) fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}
