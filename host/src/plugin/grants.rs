//! What an operator lets a plugin do. A component asks by importing; the operator answers in `heddle.toml`.

use std::fmt;

use crate::error::{Error, Result};

/// The capabilities that were granted to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grants {
    /// May write to the log.
    pub log: bool,
    /// May read the (coarse) time.
    pub clock: bool,
    /// May draw random bytes.
    pub random: bool,
    /// May see a caller's secret itself (`credential.reveal`). Needs no import of its own.
    pub reveal_credential: bool,
}

impl Default for Grants {
    /// `log`, and nothing else.
    fn default() -> Self {
        Self {
            log: true,
            ..Self::NONE
        }
    }
}

impl Grants {
    /// Nothing at all.
    pub const NONE: Self = Self {
        log: false,
        clock: false,
        random: false,
        reveal_credential: false,
    };

    /// Reads the `grants` of a slot; none is the default.
    ///
    /// # Errors
    /// [`Error::Config`] for a name that is not a grant.
    pub fn parse(names: Option<&[String]>) -> Result<Self> {
        let Some(names) = names else {
            return Ok(Self::default());
        };
        let mut grants = Self::NONE;
        for name in names {
            match name.as_str() {
                "log" => grants.log = true,
                "clock" => grants.clock = true,
                "random" => grants.random = true,
                "reveal-credential" => grants.reveal_credential = true,
                _ => {
                    return Err(Error::Config(format!(
                        "there is no grant `{name}`: a plugin can be granted `log`, `clock`, `random` and \
                         `reveal-credential`"
                    )));
                }
            }
        }
        Ok(grants)
    }

    /// The names of what is granted, in a fixed order.
    pub fn names(self) -> Vec<&'static str> {
        [
            (self.log, "log"),
            (self.clock, "clock"),
            (self.random, "random"),
            (self.reveal_credential, "reveal-credential"),
        ]
        .into_iter()
        .filter_map(|(granted, name)| granted.then_some(name))
        .collect()
    }

    /// Whether the interface `heddle:plugin/NAME` may be imported. None if it is no matter of grants.
    pub(super) fn of_interface(self, name: &str) -> Option<bool> {
        match name {
            "log" => Some(self.log),
            "clock" => Some(self.clock),
            "random" => Some(self.random),
            _ => None,
        }
    }
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names();
        f.write_str(if names.is_empty() { "nothing" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_granted_unless_the_operator_says_otherwise() {
        assert_eq!(Grants::parse(None).unwrap().names(), ["log"]);
        assert_eq!(Grants::parse(Some(&[])).unwrap(), Grants::NONE);
        let two = ["random".to_owned(), "reveal-credential".to_owned()];
        assert_eq!(
            Grants::parse(Some(&two)).unwrap().names(),
            ["random", "reveal-credential"]
        );
    }

    #[test]
    fn an_unknown_grant_is_named() {
        let error = Grants::parse(Some(&["egress".to_owned()])).unwrap_err();
        assert!(error.to_string().contains("`egress`"), "{error}");
    }
}
