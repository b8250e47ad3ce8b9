//! Watching folders. An event says only that something may have changed: what did is found by looking.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};

use super::mailbox::Mailbox;

/// Watches folders until it is dropped. Where the system cannot, the regular look is all there is.
pub(super) fn watch<'a>(
    folders: impl IntoIterator<Item = &'a Path>,
    mailbox: &Arc<Mailbox>,
) -> Option<RecommendedWatcher> {
    let folders: BTreeSet<_> = folders.into_iter().collect();
    if folders.is_empty() {
        return None;
    }
    let mailbox = Arc::clone(mailbox);
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading a file is an event too, and looking must not make the next look due.
        let read = matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(kind)
            if kind != AccessKind::Close(AccessMode::Write)));
        if !read {
            mailbox.touch();
        }
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!("plugin files are not watched, only looked at from time to time: {error}");
            return None;
        }
    };
    for folder in folders {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            tracing::warn!(
                folder = %folder.display(),
                "this folder is not watched, only looked at from time to time: {error}"
            );
        }
    }
    Some(watcher)
}
