//! The choices of a generation: the text of each on its way through the stop plugin, its tokens, how it ended.

use heddle_engine::{
    request::{FinishReason as EngineFinish, TokenInfo},
    text::Tokenizer,
};

use crate::{
    error::Result,
    plugin::{
        Matcher, Plugin, StopSession,
        bindings::heddle::plugin::generation::{Alternative, Choice, Event, FinishReason, Token},
    },
    telemetry::{CallMeter, Metrics},
};

/// The stop plugin at work: a matcher for each choice.
pub(super) struct Stops {
    session: StopSession,
    push: CallMeter,
    flush: CallMeter,
}

impl Stops {
    /// A matcher for each of `choices` choices.
    pub(super) fn open(
        plugin: &Plugin,
        metrics: &Metrics,
        sequences: &[String],
        keep: bool,
        choices: usize,
    ) -> Result<(Self, Vec<Matcher>)> {
        let mut session = metrics
            .call(plugin.slot(), "instantiate")
            .measure(|| StopSession::open(plugin))?;
        let meter = metrics.call(plugin.slot(), "matcher");
        let matchers = (0..choices)
            .map(|_| meter.measure(|| session.matcher(sequences, keep)))
            .collect::<Result<Vec<_>>>()?;
        let stops = Self {
            session,
            push: metrics.call(plugin.slot(), "push"),
            flush: metrics.call(plugin.slot(), "flush"),
        };
        Ok((stops, matchers))
    }

    /// What of `text` may be shown, and which sequence it completed.
    fn push(&mut self, matcher: Matcher, text: &str) -> Result<(String, Option<u32>)> {
        let session = &mut self.session;
        let verdict = self.push.measure(|| session.push(matcher, text))?;
        Ok((verdict.emit, verdict.stopped))
    }

    fn flush(&mut self, matcher: Matcher) -> Result<String> {
        let session = &mut self.session;
        self.flush.measure(|| session.flush(matcher))
    }
}

/// One choice.
#[derive(Debug, Default)]
pub(super) struct ChoiceState {
    /// Who watches its text, where there are stop sequences.
    pub matcher: Option<Matcher>,
    /// Tokens up to here; what comes after a stop sequence does not count.
    pub generated: u32,
    /// The sum of its tokens' log probabilities.
    logprobs: f64,
    /// Set once it has ended.
    pub finish: Option<FinishReason>,
}

impl ChoiceState {
    /// What `best_of` goes by.
    pub(super) fn mean_logprob(&self) -> f64 {
        self.logprobs / f64::from(self.generated.max(1))
    }

    /// A token came. The event, if the client is to see something.
    pub(super) fn token(
        &mut self,
        number: u32,
        text: String,
        token: &TokenInfo,
        record: Option<&Tokenizer>,
        stops: Option<&mut Stops>,
    ) -> Result<Option<Event>> {
        self.generated += 1;
        self.logprobs += f64::from(token.logprob.unwrap_or(0.0));
        let tokens: Vec<Token> = record
            .map(|tokenizer| token_record(token, tokenizer))
            .into_iter()
            .collect();
        let (text, stopped) = match (self.matcher, stops) {
            (Some(matcher), Some(stops)) if !text.is_empty() => stops.push(matcher, &text)?,
            _ => (text, None),
        };
        self.finish = stopped.map(FinishReason::StopSequence);
        let shows = !text.is_empty() || !tokens.is_empty() || stopped.is_some();
        Ok(shows.then(|| Event {
            choice: number,
            text,
            tokens,
            finish: self.finish.clone(),
        }))
    }

    /// It ended in the engine: what was held back is shown now.
    pub(super) fn ended(
        &mut self,
        number: u32,
        text: String,
        reason: EngineFinish,
        stops: Option<&mut Stops>,
    ) -> Result<Event> {
        let (text, stopped) = match (self.matcher, stops) {
            (Some(matcher), Some(stops)) => {
                let (mut shown, stopped) = stops.push(matcher, &text)?;
                if stopped.is_none() {
                    shown.push_str(&stops.flush(matcher)?);
                }
                (shown, stopped)
            }
            _ => (text, None),
        };
        self.finish = Some(match (stopped, reason) {
            (Some(which), _) => FinishReason::StopSequence(which),
            (None, EngineFinish::Eos) => FinishReason::Eos,
            (None, EngineFinish::Length) => FinishReason::Length,
            // Only a choice that has ended already is stopped.
            (None, EngineFinish::Stopped) => FinishReason::Other("stopped".to_owned()),
        });
        Ok(Event {
            choice: number,
            text,
            tokens: Vec::new(),
            finish: self.finish.clone(),
        })
    }
}

/// A token as plugins see it.
pub(super) fn token_record(token: &TokenInfo, tokenizer: &Tokenizer) -> Token {
    let bytes = tokenizer.token_bytes(token.id);
    Token {
        id: token.id.0,
        text: String::from_utf8_lossy(&bytes).into_owned(),
        bytes,
        logprob: token.logprob,
        top: token
            .top
            .iter()
            .map(|&(id, logprob)| {
                let bytes = tokenizer.token_bytes(id);
                Alternative {
                    id: id.0,
                    text: String::from_utf8_lossy(&bytes).into_owned(),
                    bytes,
                    logprob,
                }
            })
            .collect(),
        special: tokenizer.is_special(token.id),
    }
}

/// The choices of a document, put together from their events.
pub(super) fn assemble(choices: usize, events: impl IntoIterator<Item = Event>) -> Vec<Choice> {
    let mut assembled: Vec<Choice> = (0..)
        .take(choices)
        .map(|index| Choice {
            index,
            text: String::new(),
            tokens: Vec::new(),
            finish: FinishReason::Failed,
            generated: 0,
        })
        .collect();
    for event in events {
        let Some(choice) = assembled.get_mut(event.choice as usize) else {
            continue;
        };
        choice.text.push_str(&event.text);
        choice.tokens.extend(event.tokens);
        if let Some(finish) = event.finish {
            choice.finish = finish;
        }
    }
    assembled
}

/// Of the choices of each prompt the `returned` best, the best first, numbered anew.
pub(super) fn best_of(
    choices: Vec<Choice>,
    mean_logprobs: &[f64],
    generated: usize,
    returned: usize,
) -> Vec<Choice> {
    let mut best = Vec::new();
    let mut scored: Vec<(f64, Choice)> = mean_logprobs.iter().copied().zip(choices).collect();
    for prompt in scored.chunks_mut(generated.max(1)) {
        // Stable: of equals the first.
        prompt.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        best.extend(prompt.iter().take(returned).map(|(_, choice)| choice.clone()));
    }
    for (index, choice) in (0..).zip(&mut best) {
        choice.index = index;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(choice: u32, text: &str, finish: Option<FinishReason>) -> Event {
        Event {
            choice,
            text: text.into(),
            tokens: Vec::new(),
            finish,
        }
    }

    #[test]
    fn events_of_several_choices_become_their_texts() {
        let choices = assemble(
            2,
            [
                event(1, "b", None),
                event(0, "a", None),
                event(1, "b", Some(FinishReason::Eos)),
                event(0, "", Some(FinishReason::Length)),
            ],
        );
        let texts: Vec<_> = choices.iter().map(|choice| choice.text.as_str()).collect();
        assert_eq!(texts, ["a", "bb"]);
        assert!(matches!(choices[0].finish, FinishReason::Length));
        assert!(matches!(choices[1].finish, FinishReason::Eos));
    }

    #[test]
    fn the_best_of_each_prompt_are_kept_in_order_of_their_scores() {
        let choices = assemble(6, (0..6).map(|number| event(number, &number.to_string(), None)));
        let best = best_of(choices, &[-3.0, -1.0, -2.0, -1.0, -1.0, -9.0], 3, 2);
        let kept: Vec<_> = best
            .iter()
            .map(|choice| (choice.index, choice.text.as_str()))
            .collect();
        assert_eq!(kept, [(0, "1"), (1, "2"), (2, "3"), (3, "4")]);
    }
}
