//! What a moving name stood for when it was last looked up: a branch on the hub, a prefix in a bucket.

use std::{fs, path::PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{cache::Cache, source::Source};

/// What was learnt at the last look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Revision {
    /// The source, for who reads the file.
    pub(super) source: String,
    /// The commit, or the state of a prefix.
    pub(super) version: String,
    /// Whether anybody may see it.
    pub(super) public: bool,
    /// Whether it was seen with the operator's own credential.
    pub(super) operator: bool,
}

impl Revision {
    /// Whether it may be given out without asking the source: to everybody if it is public, else only where the
    /// operator's own credential would be used.
    pub(super) fn may_be_seen(&self, credential: Option<&str>) -> bool {
        self.public || (self.operator && credential.is_none())
    }
}

impl Cache {
    /// Notes what `source` stands for. A failure to note it is no failure to fetch.
    pub(super) fn remember(&self, source: &Source, mut revision: Revision) {
        revision.operator |= self.recall(source).is_some_and(|before| before.operator);
        let path = self.revision_path(source);
        // Written aside and renamed: another process may read it at this moment.
        let aside = path.with_added_extension(format!(
            "{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let noted = serde_json::to_vec(&revision)
            .map_err(std::io::Error::from)
            .and_then(|text| fs::write(&aside, text))
            .and_then(|()| fs::rename(&aside, &path));
        if let Err(error) = noted {
            tracing::warn!(%source, %error, "the revision could not be noted in the cache");
        }
    }

    /// What `source` stood for at the last look.
    pub(super) fn recall(&self, source: &Source) -> Option<Revision> {
        serde_json::from_slice(&fs::read(self.revision_path(source)).ok()?).ok()
    }

    fn revision_path(&self, source: &Source) -> PathBuf {
        let digest = hex::encode(Sha256::digest(source.to_string().as_bytes()));
        self.root.join("revisions").join(digest).with_extension("json")
    }
}
