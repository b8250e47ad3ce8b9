//! The traits that a plugin implements.

use crate::{
    Call, Credential, Decision, Denial, Descriptor, Grant, Identity, Outcome, Payload, Problem, Reply,
    RequestHead, Route, Target, Verdict,
    generation::{Event, Served, Usage},
};

/// What every plugin is: a name, and a state made from the operator's configuration.
pub trait Plugin: Sized + Send + Sync + 'static {
    /// Who this is.
    fn describe() -> Descriptor;

    /// Makes the plugin's state from the operator's configuration, a JSON object. Called once for each component that
    /// is loaded, before anything else.
    ///
    /// # Errors
    /// A sentence for the operator: what was expected, what was found, what to do. The component is not taken.
    fn configure(config: &str) -> Result<Self, String>;

    /// Checks that the configured plugin works, before it is taken.
    ///
    /// # Errors
    /// A sentence for the operator. The component is not taken.
    fn self_test(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Decides who may do what.
pub trait Auth: Plugin {
    /// Before the body is read. Leaves the decision to [`Auth::authorize`] unless implemented.
    ///
    /// # Errors
    /// The refusal that the caller is answered with.
    fn authenticate(&self, head: &RequestHead, credential: &Credential) -> Result<Decision, Denial> {
        let _ = (head, credential);
        Ok(Decision::Undecided)
    }

    /// After the body was parsed: what the caller may have. `token` is the body's, or else the head's.
    ///
    /// # Errors
    /// The refusal that the caller is answered with.
    fn authorize(&self, who: Option<Identity>, token: &Credential, target: &Target) -> Result<Grant, Denial>;
}

/// Speaks one API.
pub trait Protocol: Plugin {
    /// One request, from its body to its last byte.
    type Exchange: Exchange;

    /// The routes that this API has.
    fn routes(&self) -> Vec<Route>;

    /// Reads a request.
    ///
    /// # Errors
    /// The answer to a request that is not valid.
    fn parse(&self, head: &RequestHead, body: Vec<u8>) -> Result<Self::Exchange, Reply>;

    /// A failure in this API's shape, while nothing has been sent.
    fn fail(&self, head: &RequestHead, problem: Problem) -> Reply;
}

/// One request of a [`Protocol`].
pub trait Exchange: 'static {
    /// What the request wants. Called once.
    fn call(&mut self) -> Call;

    /// The engine took the request. Streams: what to send first; nothing unless implemented.
    fn start(&mut self, served: &Served) -> Vec<Payload> {
        let _ = served;
        Vec::new()
    }

    /// Streams: the next payloads. Several events may come at once.
    fn render(&mut self, events: Vec<Event>) -> Vec<Payload>;

    /// Streams: what to send last; nothing unless implemented.
    fn close(&mut self, usage: Usage) -> Vec<Payload> {
        let _ = usage;
        Vec::new()
    }

    /// Streams: a failure after the first byte. The stream just ends unless implemented.
    fn break_off(&mut self, problem: Problem) -> Vec<Payload> {
        let _ = problem;
        Vec::new()
    }

    /// Documents: the answer.
    fn finish(&mut self, outcome: Outcome) -> Reply;
}

/// Finds stop sequences.
pub trait Stop: Plugin {
    /// Watches one choice.
    type Matcher: Matcher;

    /// A matcher for these sequences; `keep` leaves the text that matched in the output.
    fn matcher(&self, sequences: Vec<String>, keep: bool) -> Self::Matcher;
}

/// Watches the text of one choice.
pub trait Matcher: 'static {
    /// The next text, in any pieces.
    fn push(&mut self, text: String) -> Verdict;

    /// The choice ended otherwise: what was held back.
    fn flush(&mut self) -> String;
}
