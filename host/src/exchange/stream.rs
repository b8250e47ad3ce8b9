//! A streamed answer after its first byte: events as payloads, a sign of life in silence, a well-formed end.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream::unfold};
use tokio::time::timeout;

use super::{Begun, Exchange, generation::Generation, problem};
use crate::{
    http::Framer,
    plugin::{
        Pipeline, ProtocolSession,
        bindings::{
            exports::heddle::plugin::protocol::{Payload, Problem},
            heddle::plugin::generation::Event,
        },
    },
    telemetry::{CallMeter, Outcome, Record},
};

/// A stream on its way. It is pulled by the connection: when the client goes away it is dropped, and with it the
/// generation, which cancels it in the engine.
pub(super) struct Streaming {
    framer: Framer,
    protocol: ProtocolSession,
    render: CallMeter,
    close: CallMeter,
    generation: Generation,
    /// What comes before the first token.
    first: Option<Vec<Payload>>,
    over: bool,
    silence: Duration,
    record: Record,
    /// Held to the last byte.
    _pipeline: Arc<Pipeline>,
}

impl Streaming {
    pub(super) fn new(exchange: Exchange, begun: Begun) -> Self {
        Self {
            render: exchange.meter("render"),
            close: exchange.meter("close"),
            framer: begun.framer,
            protocol: begun.protocol,
            generation: begun.generation,
            first: Some(begun.first),
            over: false,
            silence: Duration::from_secs(exchange.app.limits.stream_keep_alive_s.max(1)),
            record: exchange.record,
            _pipeline: exchange.pipeline,
        }
    }

    /// The body, piece by piece.
    pub(super) fn pieces(self) -> impl Stream<Item = Bytes> + Send + 'static {
        unfold(self, |mut this| async move {
            let piece = this.next().await?;
            Some((piece, this))
        })
    }

    /// The next piece; none after the last.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.over {
            let payloads = if let Some(mut first) = self.first.take() {
                let echoes = self.generation.echoes();
                first.extend(self.render(&echoes));
                first
            } else {
                match timeout(self.silence, self.generation.next()).await {
                    Ok(Ok(Some(events))) => self.render(&events),
                    Ok(Ok(None)) => self.close(),
                    Ok(Err(problem)) => self.break_off(&problem),
                    Err(_) => match self.framer.keep_alive() {
                        Some(sign) => return Some(sign),
                        None => continue,
                    },
                }
            };
            if !payloads.is_empty() {
                return Some(self.framer.frame(&payloads));
            }
        }
        None
    }

    fn render(&mut self, events: &[Event]) -> Vec<Payload> {
        self.record.usage(&self.generation.usage());
        if events.is_empty() {
            return Vec::new();
        }
        let (meter, protocol) = (&self.render, &mut self.protocol);
        match meter.measure(|| protocol.render(events)) {
            Ok(payloads) => payloads,
            Err(error) => self.break_off(&error.into()),
        }
    }

    fn close(&mut self) -> Vec<Payload> {
        let usage = self.generation.usage();
        self.record.usage(&usage);
        let (meter, protocol) = (&self.close, &mut self.protocol);
        match meter.measure(|| protocol.close(usage)) {
            Ok(payloads) => {
                self.end(Outcome::Complete);
                payloads
            }
            Err(error) => self.break_off(&error.into()),
        }
    }

    /// The stream ends with what went wrong: in the words of its API, or in the host's where the plugin is what failed.
    fn break_off(&mut self, problem: &Problem) -> Vec<Payload> {
        self.end(Outcome::BrokenOff);
        match self.protocol.break_off(problem) {
            Ok(payloads) => payloads,
            Err(_) => vec![problem::payload(problem)],
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.over = true;
        self.record.end(outcome);
    }
}
