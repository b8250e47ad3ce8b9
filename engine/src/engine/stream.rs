//! One request's events.

use std::sync::mpsc::Sender;

use tokio::sync::mpsc::UnboundedReceiver;

use super::step_loop::Command;
use crate::{error::Error, ids::RequestId, request::Event};

/// One request's events. Dropping it cancels the request: its blocks and its lease are free before the next step.
#[derive(Debug)]
pub struct GenerationStream {
    id: RequestId,
    events: UnboundedReceiver<Event>,
    commands: Sender<Command>,
    prompt_tokens: usize,
    seed: u64,
    ended: bool,
}

impl GenerationStream {
    pub(super) fn new(
        id: RequestId,
        events: UnboundedReceiver<Event>,
        commands: Sender<Command>,
        prompt_tokens: usize,
        seed: u64,
    ) -> Self {
        Self {
            id,
            events,
            commands,
            prompt_tokens,
            seed,
            ended: false,
        }
    }

    /// The next event; none after the last. May be dropped while it waits, without losing an event.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.note(event))
    }

    /// The next event if one is ready: to take several at once.
    pub fn try_next(&mut self) -> Option<Event> {
        use tokio::sync::mpsc::error::TryRecvError;
        if self.ended {
            return None;
        }
        match self.events.try_recv() {
            Ok(event) => Some(self.note(Some(event))),
            Err(TryRecvError::Disconnected) => Some(self.note(None)),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// A stream always ends with `Done` or `Failed`, even if the step loop is no more.
    fn note(&mut self, event: Option<Event>) -> Event {
        let event =
            event.unwrap_or_else(|| Event::Failed(Error::Generation("the engine has ended".to_owned())));
        self.ended = matches!(event, Event::Done | Event::Failed(_));
        event
    }

    /// Tokens of the prompt, after truncation.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The seed, given or drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Ends one choice: its stop sequence was found. It finishes as [`crate::request::FinishReason::Stopped`], after events
    /// that are under way. Does nothing to a choice that has ended.
    pub fn stop_choice(&self, choice: u32) {
        // A step loop that is no more has ended the choice.
        let _ = self.commands.send(Command::StopChoice(self.id, choice));
    }
}

impl Drop for GenerationStream {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.commands.send(Command::Cancel(self.id));
        }
    }
}
