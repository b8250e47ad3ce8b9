//! A call at the engine: one engine request for each prompt, their events as one sequence of events.
//!
//! Choices are numbered prompt by prompt: choice `i` of prompt `p` is `p * generated + i`.

use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::select_all;
use heddle_engine::{
    adapter::Lease,
    engine::GenerationStream,
    request::{Event as EngineEvent, TokenInfo},
    text::Tokenizer,
};
use uuid::Uuid;

use super::{
    choices::{self, ChoiceState, Stops},
    problem,
    request::{self, Counts, Model},
};
use crate::{
    app::App,
    http::Framer,
    plugin::{
        Pipeline,
        bindings::{
            exports::heddle::plugin::protocol::Problem,
            heddle::plugin::generation::{Choice, Event, Usage},
        },
        resources::{GenerationCall, Grant, Served},
    },
};

/// A generation that runs. Dropping it cancels what is left of it in the engine.
pub(super) struct Generation {
    /// The engine's streams, by prompt; none once it has ended.
    streams: Vec<Option<GenerationStream>>,
    choices: Vec<ChoiceState>,
    counts: Counts,
    stops: Option<Stops>,
    /// Set where the call asked for token records.
    records: Option<Tokenizer>,
    tokenizer: Tokenizer,
    framer: Option<Framer>,
    /// What stands before the text of each prompt's choices.
    echo: Vec<String>,
    /// Whether the prompts' own tokens are wanted before anything else.
    wants_prompts: bool,
    prompts: Vec<Vec<TokenInfo>>,
    /// What the engine said before it was asked.
    early: VecDeque<(usize, EngineEvent)>,
    served: Served,
    usage: Usage,
    /// Choices that have not ended.
    open: usize,
}

impl Generation {
    /// Checks the call and puts its prompts in the engine's queue.
    pub(super) fn submit(
        app: &App,
        pipeline: &Pipeline,
        call: GenerationCall,
        model: &Model,
        lease: Option<Lease>,
        grant: &Grant,
    ) -> Result<Self, Problem> {
        let framer = Framer::of(call.framing);
        let counts = Counts::of(&call, framer.is_some(), app.limits.max_choices)?;
        let tokenizer = app.engine.tokenizer().clone();
        let echo = if call.echo {
            let echo = |prompt| request::echo(prompt, &tokenizer);
            call.prompts.iter().map(echo).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };

        let total = (counts.prompts * counts.generated) as usize;
        let mut choices: Vec<ChoiceState> = (0..total).map(|_| ChoiceState::default()).collect();
        let stops = if call.stop.iter().any(|sequence| !sequence.is_empty()) {
            let plugin = pipeline.stop().ok_or_else(problem::no_stop)?;
            let (stops, matchers) = Stops::open(plugin, &app.metrics, &call.stop, call.keep_stop, total)?;
            for (choice, matcher) in choices.iter_mut().zip(matchers) {
                choice.matcher = Some(matcher);
            }
            Some(stops)
        } else {
            None
        };

        // All prompts get the seed of the first, so that the one seed of the answer makes all of it again.
        let mut seed = call.seed;
        let mut streams = Vec::with_capacity(call.prompts.len());
        let mut prompt_tokens = 0;
        for prompt in &call.prompts {
            let prompt = request::engine_prompt(prompt)?;
            let request = request::engine_request(&call, prompt, &counts, lease.clone(), grant, seed);
            let stream = app.engine.submit(request)?;
            seed = Some(stream.seed());
            prompt_tokens += stream.prompt_tokens();
            streams.push(Some(stream));
        }
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);

        Ok(Self {
            choices,
            stops,
            records: call.logprobs.is_some().then(|| tokenizer.clone()),
            tokenizer,
            framer,
            echo,
            wants_prompts: call.prompt_logprobs.is_some(),
            prompts: vec![Vec::new(); streams.len()],
            early: VecDeque::new(),
            served: Served {
                id: Uuid::now_v7().simple().to_string(),
                created: now(),
                model: match model {
                    Model::Base => app.model.name.clone(),
                    Model::Adapter { id, .. } => id.clone(),
                },
                base_model: app.model.name.clone(),
                prompt_tokens,
                prompts: Vec::new(),
                seed: seed.unwrap_or_default(),
            },
            usage: Usage {
                prompt_tokens,
                completion_tokens: 0,
                cached_tokens: 0,
            },
            open: total,
            counts,
            streams,
        })
    }

    /// Waits until the engine has begun: up to here a failure still has a status of its own. Where the prompts' tokens
    /// are wanted, all of them must have been computed.
    pub(super) async fn begin(&mut self) -> Result<(), Problem> {
        let waited_for = if self.wants_prompts { self.streams.len() } else { 1 };
        for prompt in 0..waited_for {
            let Some(stream) = &mut self.streams[prompt] else {
                continue;
            };
            match stream.next().await {
                Some(EngineEvent::Failed(error)) => return Err(error.into()),
                Some(event) => self.early.push_back((prompt, event)),
                None => return Err(problem::ended_early()),
            }
        }
        for (prompt, event) in &self.early {
            if let EngineEvent::Prefilled { prompt: tokens, .. } = event {
                self.prompts[*prompt].clone_from(tokens);
            }
        }
        Ok(())
    }

    /// How the answer is framed; none for a document.
    pub(super) fn framer(&self) -> Option<Framer> {
        self.framer
    }

    /// What serves the call, after [`Self::begin`].
    pub(super) fn served(&mut self) -> Served {
        let mut served = self.served.clone();
        if self.wants_prompts {
            let record = |token: &TokenInfo| choices::token_record(token, &self.tokenizer);
            served.prompts = std::mem::take(&mut self.prompts)
                .iter()
                .map(|tokens| tokens.iter().map(record).collect())
                .collect();
        }
        served
    }

    /// Token counts so far.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// The prompts, as the first events of a stream, where they are echoed.
    pub(super) fn echoes(&self) -> Vec<Event> {
        let of = |choice: usize| self.echo.get(choice / self.counts.generated as usize);
        (0..self.choices.len())
            .filter_map(|choice| {
                Some(Event {
                    choice: u32::try_from(choice).ok()?,
                    text: of(choice)?.clone(),
                    tokens: Vec::new(),
                    finish: None,
                })
            })
            .collect()
    }

    /// The next events: waits for one and takes what else is ready. None after the last choice has ended.
    ///
    /// Nothing is lost if the future is dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Event>>, Problem> {
        if self.open == 0 {
            return Ok(None);
        }
        let mut events = Vec::new();
        if self.early.is_empty() {
            let arrived = self.wait().await?;
            self.early.push_back(arrived);
        }
        while let Some((prompt, event)) = self.early.pop_front() {
            self.take(prompt, event, &mut events)?;
        }
        for prompt in 0..self.streams.len() {
            while let Some(event) = self.streams[prompt].as_mut().and_then(GenerationStream::try_next) {
                self.take(prompt, event, &mut events)?;
            }
        }
        Ok(Some(events))
    }

    /// The whole answer of a document.
    pub(super) async fn collect(&mut self) -> Result<Vec<Choice>, Problem> {
        let mut events = self.echoes();
        while let Some(more) = self.next().await? {
            events.extend(more);
        }
        let mut choices = choices::assemble(self.choices.len(), events);
        for (choice, state) in choices.iter_mut().zip(&self.choices) {
            choice.generated = state.generated;
        }
        let Counts {
            generated, returned, ..
        } = self.counts;
        if generated == returned {
            return Ok(choices);
        }
        let scores: Vec<f64> = self.choices.iter().map(ChoiceState::mean_logprob).collect();
        Ok(choices::best_of(
            choices,
            &scores,
            generated as usize,
            returned as usize,
        ))
    }

    async fn wait(&mut self) -> Result<(usize, EngineEvent), Problem> {
        let running = self
            .streams
            .iter_mut()
            .enumerate()
            .filter_map(|(prompt, stream)| {
                let stream = stream.as_mut()?;
                Some(Box::pin(async move { (prompt, stream.next().await) }))
            })
            .collect::<Vec<_>>();
        if running.is_empty() {
            return Err(problem::ended_early());
        }
        let ((prompt, event), ..) = select_all(running).await;
        event
            .map(|event| (prompt, event))
            .ok_or_else(problem::ended_early)
    }

    fn take(&mut self, prompt: usize, event: EngineEvent, events: &mut Vec<Event>) -> Result<(), Problem> {
        match event {
            EngineEvent::Prefilled { cached_tokens, .. } => {
                self.usage.cached_tokens += u32::try_from(cached_tokens).unwrap_or(u32::MAX);
            }
            EngineEvent::Token { choice, text, token } => {
                let number = self.number(prompt, choice);
                let Some(state) = running(&mut self.choices, number) else {
                    return Ok(());
                };
                let shown = state.token(number, text, &token, self.records.as_ref(), self.stops.as_mut())?;
                let stopped = state.finish.is_some();
                self.usage.completion_tokens += 1;
                events.extend(shown);
                if stopped {
                    self.open -= 1;
                    if let Some(stream) = &self.streams[prompt] {
                        stream.stop_choice(choice);
                    }
                }
            }
            EngineEvent::Finished {
                choice,
                text,
                reason,
                generated,
            } => {
                let number = self.number(prompt, choice);
                let Some(state) = running(&mut self.choices, number) else {
                    return Ok(());
                };
                let generated = u32::try_from(generated).unwrap_or(u32::MAX);
                self.usage.completion_tokens += generated.saturating_sub(state.generated);
                state.generated = generated;
                events.push(state.ended(number, text, reason, self.stops.as_mut())?);
                self.open -= 1;
            }
            EngineEvent::Done => self.streams[prompt] = None,
            EngineEvent::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn number(&self, prompt: usize, choice: u32) -> u32 {
        u32::try_from(prompt).unwrap_or(u32::MAX) * self.counts.generated + choice
    }
}

/// The choice, unless it has ended: what the engine made beyond a stop sequence is nobody's.
fn running(choices: &mut [ChoiceState], number: u32) -> Option<&mut ChoiceState> {
    choices
        .get_mut(number as usize)
        .filter(|choice| choice.finish.is_none())
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
