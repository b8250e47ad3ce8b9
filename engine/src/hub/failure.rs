//! How fetching fails: what decides whether another source, an older revision or another attempt may help.

use super::Source;
use crate::error::Error;

/// Why something could not be fetched. The texts are reasons, to put behind what was asked for.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// Nobody answered, or not usefully: an older answer may do.
    Unreachable(String),
    /// The source says that it does not exist.
    NotFound(String),
    /// The source refuses the credential, or asks for one.
    Forbidden(String),
    /// It exists and is not to be had or not what it should be: too large, another hash, missing files.
    Refused(String),
    /// This machine's own trouble: a full disk, a folder that cannot be written.
    Ours(Error),
}

impl Failure {
    /// The failure as the caller sees it. `from` names the source: `pypi.org`.
    pub(super) fn of(self, source: &Source, from: &str) -> Error {
        let (reason, not_found, forbidden) = match self {
            Self::Unreachable(reason) | Self::Refused(reason) => (reason, false, false),
            Self::NotFound(reason) => (reason, true, false),
            Self::Forbidden(reason) => (reason, false, true),
            Self::Ours(error) => return error,
        };
        Error::Fetch {
            what: source.to_string(),
            source_name: from.to_owned(),
            reason,
            not_found,
            forbidden,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// The innermost cause, which is the one that says something.
pub(super) fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// A number of bytes in words.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} {}", UNITS[0]),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Several names in words, so many at most.
pub(super) fn some_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MOST: usize = 20;
    let all: Vec<_> = names.into_iter().collect();
    match all.len() {
        0 => "nothing".to_owned(),
        count if count > MOST => format!("{} and {} more", all[..MOST].join(", "), count - MOST),
        _ => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lists_read_well() {
        assert_eq!(bytes(999), "999 bytes");
        assert_eq!(bytes(93_400_000), "93.4 MB");
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
        assert_eq!(some_names([]), "nothing");
        assert_eq!(some_names(["a", "b"]), "a, b");
        assert!(some_names(vec!["x"; 23]).ends_with("and 3 more"));
    }
}
