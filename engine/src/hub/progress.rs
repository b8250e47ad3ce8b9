//! Progress, for the person who waits.

/// How far a download is. The caller shows it.
pub trait Progress: Send + Sync {
    /// A file of `total` bytes begins, of which `done` are there from an earlier attempt. The same file begins again when
    /// what came was of no use.
    fn begin(&self, file: &str, total: Option<u64>, done: u64);
    /// So many bytes more.
    fn advance(&self, bytes: u64);
    /// The file is complete. A file that fails does not end: the error says so.
    fn end(&self);
    /// A sentence for the person who waits: a source that was tried and what comes next.
    fn say(&self, message: &str);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn say(&self, _: &str) {}
}
