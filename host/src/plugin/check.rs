//! `heddle plugin check`: all that can be said of a component without a server.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{
    CheckReport, Limits, Role, SlotConfig,
    builtin::DEFAULT_SLOTS,
    grants::Grants,
    load,
    plugin::Settings,
    report::{Refusal, Rung},
    runtime::MAX_MEMORY_MIB,
};
use crate::error::{Error, Result};

/// Climbs every rung that needs no server: contract, compile, configure (with `{}`), self-test. `grants` as in
/// [`SlotConfig::grants`].
pub fn check(bytes: &[u8], grants: Option<&[String]>, limits: &Limits) -> CheckReport {
    let config = SlotConfig {
        grants: grants.map(<[String]>::to_vec),
        limits: limits.clone(),
        ..SlotConfig::default()
    };
    check_with("check", bytes, &config)
}

/// The same for a component that is to go into a slot, with the configuration of that slot.
pub fn check_with(slot: &str, bytes: &[u8], config: &SlotConfig) -> CheckReport {
    match settings(slot, config) {
        Ok(settings) => load::load(&bytes.into(), &Arc::new(settings), None).0,
        Err(error) => {
            let mut report = CheckReport {
                digest: load::digest(bytes),
                bytes: bytes.len(),
                ..CheckReport::default()
            };
            // The report says it all: there is nothing else to return.
            let _ = report.climb(Rung::Contract, |_| {
                Err::<(), _>(Refusal::new(Rung::Contract, error.to_string()))
            });
            report
        }
    }
}

/// What a slot's configuration says, checked.
pub(super) fn settings(slot: &str, config: &SlotConfig) -> Result<Settings> {
    let limits = config.limits.clone();
    let fault = |what: String| Error::Config(format!("[plugins.slots.{slot}.limits]: {what}"));
    if limits.memory_mib == 0 || limits.memory_mib > MAX_MEMORY_MIB {
        return Err(fault(format!(
            "memory_mib is {}; it can be 1 to {MAX_MEMORY_MIB}",
            limits.memory_mib
        )));
    }
    let positive = [
        ("call_ms", limits.call_ms),
        ("token_ms", limits.token_ms),
        ("request_ms", limits.request_ms),
        ("data_kib", limits.data_kib as u64),
        ("concurrency", limits.concurrency as u64),
    ];
    if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
        return Err(fault(format!("{name} is 0, with which nothing could run")));
    }
    if limits.concurrency > Semaphore::MAX_PERMITS {
        return Err(fault(format!("concurrency is above {}", Semaphore::MAX_PERMITS)));
    }
    let json = serde_json::to_string(&config.config)
        .map_err(|error| Error::Config(format!("[plugins.slots.{slot}.config]: {error}")))?;
    Ok(Settings {
        slot: slot.to_owned(),
        config: json,
        grants: Grants::parse(config.grants.as_deref())?,
        roles: roles(slot, config.roles.as_deref())?,
        permits: Arc::new(Semaphore::new(limits.concurrency)),
        limits,
    })
}

fn roles(slot: &str, configured: Option<&[Role]>) -> Result<Option<Vec<Role>>> {
    let default = DEFAULT_SLOTS.iter().find(|default| default.slot == slot);
    match (configured, default) {
        (None, default) => Ok(default.map(|default| vec![default.role])),
        (Some([]), _) => Err(Error::Config(format!(
            "[plugins.slots.{slot}]: `roles` is empty, so that nothing of the component would be used"
        ))),
        (Some(roles), Some(default)) if !roles.contains(&default.role) => Err(Error::Config(format!(
            "[plugins.slots.{slot}]: `roles` has to hold `{}`, which this slot is for",
            default.role.name()
        ))),
        (Some(roles), _) => Ok(Some(roles.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_be_are_named() {
        for (limits, name) in [
            (
                Limits {
                    memory_mib: 100_000,
                    ..Limits::default()
                },
                "memory_mib",
            ),
            (
                Limits {
                    token_ms: 0,
                    ..Limits::default()
                },
                "token_ms",
            ),
            (
                Limits {
                    concurrency: usize::MAX,
                    ..Limits::default()
                },
                "concurrency",
            ),
        ] {
            let report = check(b"", None, &limits);
            let failed = report.failed().unwrap();
            assert!(failed.note.as_ref().unwrap().contains(name), "{report}");
        }
    }

    #[test]
    fn a_default_slot_uses_the_role_that_it_is_for() {
        assert_eq!(roles("auth", None).unwrap(), Some(vec![Role::Auth]));
        assert_eq!(roles("other", None).unwrap(), None);
        let both = [Role::Auth, Role::Stop];
        assert_eq!(roles("auth", Some(&both)).unwrap(), Some(both.to_vec()));
        assert!(
            roles("stop", Some(&[Role::Auth]))
                .unwrap_err()
                .to_string()
                .contains("`stop`")
        );
        assert!(roles("other", Some(&[])).is_err());
    }

    #[test]
    fn the_configuration_becomes_json() {
        let config: SlotConfig =
            toml::from_str("config = { mode = \"open\", n = 1, list = [1.5, true] }").unwrap();
        let settings = settings("a", &config).unwrap();
        let json: serde_json::Value = serde_json::from_str(&settings.config).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"mode": "open", "n": 1, "list": [1.5, true]})
        );
    }
}
