//! What a request names, and what is known of it.
//!
//! A slot is a source as somebody sees it. Registered names point to slots; a slot points to the generation that its source held when
//! it was last read.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use sha2::{Digest, Sha256};

use super::{lease::LeaseCell, stamp::Stamp};
use crate::{error::Error, hub::Source, ids::Generation};

/// A source, and on whose behalf it is read.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotKey {
    pub(super) source: Source,
    pub(super) viewer: Viewer,
}

/// On whose behalf an adapter is read. What one viewer may see says nothing of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Viewer {
    /// The operator, who registered it for everybody, or whose disk or binary it is on.
    Operator,
    /// A caller without a credential.
    Anonymous,
    /// A caller, by the digest of the credential.
    Credential([u8; 32]),
}

impl Viewer {
    pub(super) fn of(source: &Source, credential: Option<&str>) -> Self {
        match (source, credential) {
            (Source::Local(_) | Source::Embedded(_), _) => Self::Operator,
            (_, None) => Self::Anonymous,
            (_, Some(credential)) => {
                let mut hash = Sha256::new();
                hash.update(b"heddle adapter viewer v1\0");
                hash.update(credential);
                Self::Credential(hash.finalize().into())
            }
        }
    }
}

/// A registered name.
pub(super) struct Named {
    pub(super) key: Arc<SlotKey>,
    /// Seconds since 1970.
    pub(super) created: u64,
}

/// What is known of one source as one viewer sees it.
#[derive(Default)]
pub(super) struct Slot {
    /// Registered names that point here.
    pub(super) names: usize,
    /// Its last name was taken away: it goes as soon as nobody waits for it.
    pub(super) retired: bool,
    /// What the source held when it was last read.
    pub(super) generation: Option<Generation>,
    /// The folder's stamp at that time; none for what is not local.
    pub(super) stamp: Option<Stamp>,
    /// The folder that was read, if the source is local.
    pub(super) folder: Option<PathBuf>,
    /// Until when the viewer's access is taken as checked.
    pub(super) access_until: Option<Instant>,
    pub(super) failure: Option<Failure>,
    pub(super) phase: Phase,
    pub(super) waiting: Vec<Waiting>,
    /// The viewer's credential, kept only while somebody waits.
    pub(super) credential: Option<Arc<str>>,
}

/// A recent failure, which answers at once.
pub(super) struct Failure {
    pub(super) until: Instant,
    pub(super) error: Error,
    /// Of the files that failed: others are tried at once.
    pub(super) stamp: Option<Stamp>,
    /// The generation before, which new requests get as long as it is at hand.
    pub(super) fallback: Option<Generation>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// In `jobs` or `parked`.
    Queued,
    /// A loader is at it.
    Running,
}

/// A lease that waits for its adapter to be read.
pub(super) struct Waiting {
    pub(super) cell: Arc<LeaseCell>,
    /// What the folder looked like when the lease was asked for.
    pub(super) stamp: Option<Stamp>,
    /// Whether the reading began after that, so that what it finds is recent enough.
    pub(super) covered: bool,
}

/// Where an adapter was read, if it is local.
#[derive(Default)]
pub(super) struct ReadFrom {
    pub(super) folder: Option<PathBuf>,
    /// None if it could not show the next change.
    pub(super) stamp: Option<Stamp>,
}

/// The folder that shows whether a source has changed: its own path, so that a link that points elsewhere shows; for a relative path,
/// which is looked for in several places, the one where it was found.
pub(super) fn watched<'a>(source: &'a Source, found: Option<&'a Path>) -> Option<&'a Path> {
    match source {
        Source::Local(path) if path.is_absolute() => Some(path),
        Source::Local(_) => found,
        _ => None,
    }
}
