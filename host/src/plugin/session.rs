//! A plugin at work for one request: a fresh instance of the configured snapshot, and typed calls into it.
//!
//! All calls are synchronous and bounded (time, memory, host data). After an error the session is dead: the
//! instance is never entered again. Dropping a session ends its instance without asking the guest.

use wasmtime::component::{Resource, ResourceAny};

use super::{
    Plugin,
    bindings::{
        exports::heddle::plugin::{
            auth::{self, Decision, Denial, Identity},
            protocol::{self, Call, Outcome, Payload, Problem, Reply},
            stop::{self, Verdict},
        },
        heddle::plugin::generation::{Event, Usage},
    },
    call::{Budget, Session},
    resources::{Credential, GenerationCall, Grant, RequestHead, Served, Target},
};
use crate::error::Result;

/// An auth plugin at work.
pub struct AuthSession(Session<auth::Guest>);

impl AuthSession {
    /// A fresh instance.
    ///
    /// # Errors
    /// [`Error::PluginBusy`](crate::Error::PluginBusy), or a failure of the instance. All of them deny.
    pub fn open(plugin: &Plugin) -> Result<Self> {
        Session::open(plugin, |plugin, store, instance| {
            plugin
                .exports
                .auth
                .as_ref()
                .ok_or_else(no_role)?
                .load(store, instance)
        })
        .map(Self)
    }

    /// `auth.authenticate`.
    ///
    /// # Errors
    /// A failure of the plugin, which denies.
    pub fn authenticate(
        &mut self,
        head: &RequestHead,
        credential: &Credential,
    ) -> Result<Result<Decision, Denial>> {
        self.0.call("auth.authenticate", Budget::Call, |store, guest| {
            let state = store.data_mut();
            let (head, credential) = (state.lend(head.clone())?, state.lend(credential.clone())?);
            let (lent_head, lent_credential) = (borrow(&head), borrow(&credential));
            let answer = guest.call_authenticate(&mut *store, lent_head, lent_credential)?;
            let state = store.data_mut();
            state.take(head)?;
            state.take(credential)?;
            Ok(answer)
        })
    }

    /// `auth.authorize`.
    ///
    /// # Errors
    /// A failure of the plugin, which denies.
    pub fn authorize(
        &mut self,
        who: Option<&Identity>,
        token: &Credential,
        target: &Target,
    ) -> Result<Result<Grant, Denial>> {
        self.0.call("auth.authorize", Budget::Call, |store, guest| {
            let state = store.data_mut();
            let (token, target) = (state.lend(token.clone())?, state.lend(target.clone())?);
            let (lent_token, lent_target) = (borrow(&token), borrow(&target));
            let answer = guest.call_authorize(&mut *store, who, lent_token, lent_target)?;
            let state = store.data_mut();
            state.take(token)?;
            state.take(target)?;
            answer
                .map(|grant| state.take(grant))
                .map_or_else(|denial| Ok(Err(denial)), |grant| grant.map(Ok))
        })
    }
}

/// A protocol plugin at work.
pub struct ProtocolSession {
    session: Session<protocol::Guest>,
    /// What `parse` made.
    exchange: Option<ResourceAny>,
}

impl ProtocolSession {
    /// A fresh instance.
    ///
    /// # Errors
    /// [`Error::PluginBusy`](crate::Error::PluginBusy), or a failure of the instance.
    pub fn open(plugin: &Plugin) -> Result<Self> {
        let session = Session::open(plugin, |plugin, store, instance| {
            plugin
                .exports
                .protocol
                .as_ref()
                .ok_or_else(no_role)?
                .load(store, instance)
        })?;
        Ok(Self {
            session,
            exchange: None,
        })
    }

    /// `protocol.fail`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn fail(&mut self, head: &RequestHead, problem: &Problem) -> Result<Reply> {
        self.session.call("protocol.fail", Budget::Call, |store, guest| {
            let head = store.data_mut().lend(head.clone())?;
            let reply = guest.call_fail(&mut *store, borrow(&head), problem)?;
            store.data_mut().take(head)?;
            Ok(reply)
        })
    }

    /// `exchange.parse` and, if that succeeded, `exchange.call`. [`Call::Generate`]'s handle is taken out of the table
    /// by [`Self::take_generation`].
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn parse(&mut self, head: &RequestHead, body: &[u8]) -> Result<Result<Call, Reply>> {
        let parsed = self
            .session
            .call("exchange.parse", Budget::Call, |store, guest| {
                let head = store.data_mut().lend(head.clone())?;
                let parsed = guest.exchange().call_parse(&mut *store, borrow(&head), body)?;
                store.data_mut().take(head)?;
                Ok(parsed)
            })?;
        match parsed {
            Ok(exchange) => {
                self.exchange = Some(exchange);
                let call =
                    |store: &mut _, guest: &protocol::Guest| guest.exchange().call_call(store, exchange);
                self.session.call("exchange.call", Budget::Call, call).map(Ok)
            }
            Err(reply) => Ok(Err(reply)),
        }
    }

    /// The generation behind the handle of [`Call::Generate`].
    ///
    /// # Errors
    /// [`Error::PluginTrap`](crate::Error::PluginTrap) if the handle is of another session.
    pub fn take_generation(&mut self, handle: Resource<GenerationCall>) -> Result<GenerationCall> {
        self.session.take("exchange.call", handle)
    }

    /// `exchange.start`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn start(&mut self, served: Served) -> Result<Vec<Payload>> {
        let exchange = self.exchange("exchange.start")?;
        self.session.call("exchange.start", Budget::Call, |store, guest| {
            let served = store.data_mut().lend(served)?;
            let payloads = guest
                .exchange()
                .call_start(&mut *store, exchange, borrow(&served))?;
            store.data_mut().take(served)?;
            Ok(payloads)
        })
    }

    /// `exchange.render`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn render(&mut self, events: &[Event]) -> Result<Vec<Payload>> {
        let exchange = self.exchange("exchange.render")?;
        self.session
            .call("exchange.render", Budget::Token, |store, guest| {
                guest.exchange().call_render(store, exchange, events)
            })
    }

    /// `exchange.close`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn close(&mut self, usage: Usage) -> Result<Vec<Payload>> {
        let exchange = self.exchange("exchange.close")?;
        self.session.call("exchange.close", Budget::Call, |store, guest| {
            guest.exchange().call_close(store, exchange, usage)
        })
    }

    /// `exchange.break-off`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn break_off(&mut self, problem: &Problem) -> Result<Vec<Payload>> {
        let exchange = self.exchange("exchange.break-off")?;
        self.session
            .call("exchange.break-off", Budget::Call, |store, guest| {
                guest.exchange().call_break_off(store, exchange, problem)
            })
    }

    /// `exchange.finish`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn finish(&mut self, outcome: &Outcome) -> Result<Reply> {
        let exchange = self.exchange("exchange.finish")?;
        self.session
            .call("exchange.finish", Budget::Call, |store, guest| {
                guest.exchange().call_finish(store, exchange, outcome)
            })
    }

    fn exchange(&self, call: &'static str) -> Result<ResourceAny> {
        self.exchange
            .ok_or_else(|| self.session.misuse(call, "no request was parsed before it"))
    }
}

/// A stop plugin at work: one matcher for each choice.
pub struct StopSession {
    session: Session<stop::Guest>,
    matchers: Vec<ResourceAny>,
}

/// A matcher of a [`StopSession`], by the choice that it watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matcher(pub usize);

impl StopSession {
    /// A fresh instance.
    ///
    /// # Errors
    /// [`Error::PluginBusy`](crate::Error::PluginBusy), or a failure of the instance.
    pub fn open(plugin: &Plugin) -> Result<Self> {
        let session = Session::open(plugin, |plugin, store, instance| {
            plugin
                .exports
                .stop
                .as_ref()
                .ok_or_else(no_role)?
                .load(store, instance)
        })?;
        Ok(Self {
            session,
            matchers: Vec::new(),
        })
    }

    /// `matcher.constructor`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn matcher(&mut self, sequences: &[String], keep: bool) -> Result<Matcher> {
        let matcher = self
            .session
            .call("matcher.constructor", Budget::Call, |store, guest| {
                guest.matcher().call_constructor(store, sequences, keep)
            })?;
        self.matchers.push(matcher);
        Ok(Matcher(self.matchers.len() - 1))
    }

    /// `matcher.push`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn push(&mut self, matcher: Matcher, text: &str) -> Result<Verdict> {
        let matcher = self.find("matcher.push", matcher)?;
        self.session.call("matcher.push", Budget::Token, |store, guest| {
            guest.matcher().call_push(store, matcher, text)
        })
    }

    /// `matcher.flush`.
    ///
    /// # Errors
    /// A failure of the plugin.
    pub fn flush(&mut self, matcher: Matcher) -> Result<String> {
        let matcher = self.find("matcher.flush", matcher)?;
        self.session.call("matcher.flush", Budget::Token, |store, guest| {
            guest.matcher().call_flush(store, matcher)
        })
    }

    fn find(&self, call: &'static str, matcher: Matcher) -> Result<ResourceAny> {
        self.matchers
            .get(matcher.0)
            .copied()
            .ok_or_else(|| self.session.misuse(call, "there is no such matcher"))
    }
}

/// The guest's view of a host value: a borrow, which ends with the call.
fn borrow<T>(lent: &Resource<T>) -> Resource<T> {
    Resource::new_borrow(lent.rep())
}

fn no_role() -> wasmtime::Error {
    wasmtime::Error::msg("the component does not have this role")
}
