//! What stands between the traits of this crate and the generated ones. For [`export!`](crate::export) only.

use std::{cell::RefCell, marker::PhantomData, sync::OnceLock};

use crate::{
    Auth, Call, Credential, Decision, Denial, Descriptor, Exchange, Grant, Identity, Matcher, Outcome,
    Payload, Plugin, Problem, Protocol, Reply, RequestHead, Route, Stop, Target, Verdict, bindings,
    generation::{Event, Served, Usage},
    log,
};

/// Holds a plugin's state from `configure` on.
pub type Cell<P> = OnceLock<P>;

/// A plugin that was exported.
pub trait Configured: Plugin {
    /// Where its state is.
    fn cell() -> &'static Cell<Self>;

    /// Its state. Panics before `configure`: a host that calls a role first breaks the contract.
    fn state() -> &'static Self {
        Self::cell().get().expect("the host calls `configure` first")
    }
}

/// The type that carries the generated traits for a plugin.
pub struct Exported<P>(PhantomData<P>);

/// A version with its build metadata.
pub fn version(package: &str, build: Option<&str>) -> String {
    match build {
        Some(build) => format!("{package}+{build}"),
        None => package.to_owned(),
    }
}

/// Says where a panic was before the instance traps. The panic's message stays here: it may quote a prompt.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if let Some(at) = panic.location() {
            log::error(&format!("panicked at {}:{}", at.file(), at.line()));
        }
    }));
}

impl<P: Configured> bindings::lifecycle::exports::heddle::plugin::lifecycle::Guest for Exported<P> {
    fn describe() -> Descriptor {
        P::describe()
    }

    fn configure(config: String) -> Result<(), String> {
        log_panics();
        let state = P::configure(&config)?;
        P::cell()
            .set(state)
            .map_err(|_| "`configure` was called a second time on one instance".into())
    }

    fn self_test() -> Result<(), String> {
        P::state().self_test()
    }
}

impl<P: Configured + Auth> bindings::auth::exports::heddle::plugin::auth::Guest for Exported<P> {
    fn authenticate(head: &RequestHead, credential: &Credential) -> Result<Decision, Denial> {
        P::state().authenticate(head, credential)
    }

    fn authorize(who: Option<Identity>, token: &Credential, target: &Target) -> Result<Grant, Denial> {
        P::state().authorize(who, token, target)
    }
}

impl<P: Configured + Protocol> bindings::protocol::exports::heddle::plugin::protocol::Guest for Exported<P> {
    type Exchange = Running<P>;

    fn routes() -> Vec<Route> {
        P::state().routes()
    }

    fn fail(head: &RequestHead, problem: Problem) -> Reply {
        P::state().fail(head, problem)
    }
}

/// An exchange behind its handle.
pub struct Running<P: Protocol>(RefCell<P::Exchange>);

impl<P: Configured + Protocol> bindings::protocol::exports::heddle::plugin::protocol::GuestExchange
    for Running<P>
{
    fn parse(
        head: &RequestHead,
        body: Vec<u8>,
    ) -> Result<bindings::protocol::exports::heddle::plugin::protocol::Exchange, Reply> {
        let exchange = P::state().parse(head, body)?;
        Ok(
            bindings::protocol::exports::heddle::plugin::protocol::Exchange::new(Self(RefCell::new(
                exchange,
            ))),
        )
    }

    fn call(&self) -> Call {
        self.0.borrow_mut().call()
    }

    fn start(&self, served: &Served) -> Vec<Payload> {
        self.0.borrow_mut().start(served)
    }

    fn render(&self, events: Vec<Event>) -> Vec<Payload> {
        self.0.borrow_mut().render(events)
    }

    fn close(&self, usage: Usage) -> Vec<Payload> {
        self.0.borrow_mut().close(usage)
    }

    fn break_off(&self, problem: Problem) -> Vec<Payload> {
        self.0.borrow_mut().break_off(problem)
    }

    fn finish(&self, outcome: Outcome) -> Reply {
        self.0.borrow_mut().finish(outcome)
    }
}

impl<P: Configured + Stop> bindings::stop::exports::heddle::plugin::stop::Guest for Exported<P> {
    type Matcher = Watching<P>;
}

/// A matcher behind its handle.
pub struct Watching<P: Stop>(RefCell<P::Matcher>);

impl<P: Configured + Stop> bindings::stop::exports::heddle::plugin::stop::GuestMatcher for Watching<P> {
    fn new(sequences: Vec<String>, keep: bool) -> Self {
        Self(RefCell::new(P::state().matcher(sequences, keep)))
    }

    fn push(&self, text: String) -> Verdict {
        self.0.borrow_mut().push(text)
    }

    fn flush(&self) -> String {
        self.0.borrow_mut().flush()
    }
}
