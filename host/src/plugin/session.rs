//! A plugin at work for one request: a fresh instance of the configured snapshot, and typed calls into it.
//!
//! All calls are synchronous and bounded (time, memory, host data). After an error the session is dead: the
//! instance is never entered again.

use super::{
    Plugin,
    bindings::{
        exports::heddle::plugin::{
            auth::{Decision, Denial, Identity},
            protocol::{Call, Outcome, Payload, Problem, Reply},
            stop::Verdict,
        },
        heddle::plugin::generation::{Event, Usage},
    },
    resources::{Credential, Grant, RequestHead, Served, Target},
};
use crate::error::Result;

/// An auth plugin at work.
pub struct AuthSession {}

impl AuthSession {
    /// A fresh instance.
    pub fn open(plugin: &Plugin) -> Result<Self> {
        let _ = plugin;
        todo!()
    }
    /// `auth.authenticate`.
    pub fn authenticate(
        &mut self,
        head: &RequestHead,
        credential: &Credential,
    ) -> Result<Result<Decision, Denial>> {
        let _ = (head, credential);
        todo!()
    }
    /// `auth.authorize`.
    pub fn authorize(
        &mut self,
        who: Option<&Identity>,
        token: &Credential,
        target: &Target,
    ) -> Result<Result<Grant, Denial>> {
        let _ = (who, token, target);
        todo!()
    }
}

/// A protocol plugin at work.
pub struct ProtocolSession {}

impl ProtocolSession {
    /// A fresh instance.
    pub fn open(plugin: &Plugin) -> Result<Self> {
        let _ = plugin;
        todo!()
    }
    /// `protocol.fail`.
    pub fn fail(&mut self, head: &RequestHead, problem: &Problem) -> Result<Reply> {
        let _ = (head, problem);
        todo!()
    }
    /// `exchange.parse` and, if that succeeded, `exchange.call`. [`Call::Generate`]'s handle is taken out of the table
    /// by [`Self::take_generation`].
    pub fn parse(&mut self, head: &RequestHead, body: &[u8]) -> Result<Result<Call, Reply>> {
        let _ = (head, body);
        todo!()
    }
    /// The generation behind the handle of [`Call::Generate`].
    pub fn take_generation(
        &mut self,
        handle: wasmtime::component::Resource<super::resources::GenerationCall>,
    ) -> Result<super::resources::GenerationCall> {
        let _ = handle;
        todo!()
    }
    /// `exchange.start`.
    pub fn start(&mut self, served: Served) -> Result<Vec<Payload>> {
        let _ = served;
        todo!()
    }
    /// `exchange.render`.
    pub fn render(&mut self, events: &[Event]) -> Result<Vec<Payload>> {
        let _ = events;
        todo!()
    }
    /// `exchange.close`.
    pub fn close(&mut self, usage: Usage) -> Result<Vec<Payload>> {
        let _ = usage;
        todo!()
    }
    /// `exchange.break-off`.
    pub fn break_off(&mut self, problem: &Problem) -> Result<Vec<Payload>> {
        let _ = problem;
        todo!()
    }
    /// `exchange.finish`.
    pub fn finish(&mut self, outcome: &Outcome) -> Result<Reply> {
        let _ = outcome;
        todo!()
    }
}

/// A stop plugin at work: one matcher for each choice.
pub struct StopSession {}

/// A matcher of a [`StopSession`], by the choice that it watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matcher(pub usize);

impl StopSession {
    /// A fresh instance.
    pub fn open(plugin: &Plugin) -> Result<Self> {
        let _ = plugin;
        todo!()
    }
    /// `matcher.constructor`.
    pub fn matcher(&mut self, sequences: &[String], keep: bool) -> Result<Matcher> {
        let _ = (sequences, keep);
        todo!()
    }
    /// `matcher.push`.
    pub fn push(&mut self, matcher: Matcher, text: &str) -> Result<Verdict> {
        let _ = (matcher, text);
        todo!()
    }
    /// `matcher.flush`.
    pub fn flush(&mut self, matcher: Matcher) -> Result<String> {
        let _ = matcher;
        todo!()
    }
}
