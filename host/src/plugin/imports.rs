//! What a plugin may call. Every function stores or reads and returns; nothing here validates what belongs to the
//! engine, waits, or panics on what a guest says.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use wasmtime::{
    Result,
    component::{HasSelf, Linker, Resource},
};

use super::{
    bindings::heddle::plugin::{
        access, clock, generation,
        generation::{Framing, Prompt, Token},
        http,
        http::NotGranted,
        log, random,
    },
    grants::Grants,
    resources::{Credential, GenerationCall, Grant, RequestHead, Served, Target},
    runtime,
    store::{GuestFault, HostState},
};

/// Header fields that carry secrets, in lower case.
const SECRET_FIELDS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];
/// The most bytes of one `random.bytes`.
const MAX_RANDOM: u32 = 4_096;

/// A linker with what every role needs and with what was granted.
///
/// No host function awaits, so every call of every instance is synchronous (`hot`). A capability that does I/O gets a
/// second linker with its asynchronous functions, and the plugin a second `InstancePre` from it, for the hooks that
/// may wait: one such import makes all calls of an instance asynchronous, which the path of each token cannot pay.
pub(super) fn linker(grants: Grants) -> crate::Result<Linker<HostState>> {
    let mut linker = Linker::new(&runtime::runtime()?.engine);
    link(&mut linker, grants)
        .map_err(|error| crate::Error::Config(format!("the plugin interface: {error:#}")))?;
    Ok(linker)
}

fn link(linker: &mut Linker<HostState>, grants: Grants) -> Result<()> {
    type Own = HasSelf<HostState>;
    http::add_to_linker::<_, Own>(linker, |state| state)?;
    access::add_to_linker::<_, Own>(linker, |state| state)?;
    generation::add_to_linker::<_, Own>(linker, |state| state)?;
    if grants.log {
        log::add_to_linker::<_, Own>(linker, |state| state)?;
    }
    if grants.clock {
        clock::add_to_linker::<_, Own>(linker, |state| state)?;
    }
    if grants.random {
        random::add_to_linker::<_, Own>(linker, |state| state)?;
    }
    Ok(())
}

impl log::Host for HostState {
    fn write(&mut self, level: log::Level, message: String) -> Result<()> {
        self.log.write(level, &message);
        Ok(())
    }
}

impl clock::Host for HostState {
    fn now(&mut self) -> Result<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Ok(ms - ms % 10)
    }
}

impl random::Host for HostState {
    fn bytes(&mut self, count: u32) -> Result<Vec<u8>> {
        if count > MAX_RANDOM {
            // Fewer bytes than asked for might become a weak key.
            return Err(GuestFault::Random.into());
        }
        let mut bytes = vec![0; count as usize];
        getrandom::fill(&mut bytes).map_err(|error| wasmtime::Error::msg(error.to_string()))?;
        Ok(bytes)
    }
}

impl http::Host for HostState {}

impl http::HostRequestHead for HostState {
    fn method(&mut self, head: Resource<RequestHead>) -> Result<String> {
        Ok(self.table.get(&head)?.0.method.clone())
    }

    fn path(&mut self, head: Resource<RequestHead>) -> Result<String> {
        Ok(self.table.get(&head)?.0.path.clone())
    }

    fn query(&mut self, head: Resource<RequestHead>) -> Result<Option<String>> {
        Ok(self.table.get(&head)?.0.query.clone())
    }

    fn header(&mut self, head: Resource<RequestHead>, name: String) -> Result<Vec<String>> {
        if SECRET_FIELDS
            .iter()
            .any(|secret| secret.eq_ignore_ascii_case(&name))
        {
            return Ok(Vec::new());
        }
        let fields = &self.table.get(&head)?.0.headers;
        let values = fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(&name));
        Ok(values.map(|(_, value)| value.clone()).collect())
    }

    fn peer(&mut self, head: Resource<RequestHead>) -> Result<Option<String>> {
        Ok(self.table.get(&head)?.0.peer.clone())
    }

    fn request_id(&mut self, head: Resource<RequestHead>) -> Result<String> {
        Ok(self.table.get(&head)?.0.request_id.clone())
    }

    fn drop(&mut self, head: Resource<RequestHead>) -> Result<()> {
        self.take(head).map(drop)
    }
}

impl http::HostCredential for HostState {
    fn present(&mut self, credential: Resource<Credential>) -> Result<bool> {
        Ok(self.table.get(&credential)?.secret.is_some())
    }

    fn matches(&mut self, credential: Resource<Credential>, sha256_hex: String) -> Result<bool> {
        let credential = self.table.get(&credential)?;
        // The same work is done where there is no secret.
        let digest = digest(credential.secret.as_deref().unwrap_or_default());
        let equal = digest.as_bytes().ct_eq(sha256_hex.as_bytes());
        Ok(bool::from(equal) && credential.secret.is_some())
    }

    fn digest(&mut self, credential: Resource<Credential>) -> Result<String> {
        Ok(self
            .table
            .get(&credential)?
            .secret
            .as_deref()
            .map(digest)
            .unwrap_or_default())
    }

    fn reveal(&mut self, credential: Resource<Credential>) -> Result<Result<String, NotGranted>> {
        let secret = self.table.get(&credential)?.secret.as_deref();
        Ok(if self.reveal {
            secret.map(str::to_owned).ok_or(NotGranted::Absent)
        } else {
            Err(NotGranted::Denied)
        })
    }

    fn drop(&mut self, credential: Resource<Credential>) -> Result<()> {
        self.take(credential).map(drop)
    }
}

fn digest(secret: &str) -> String {
    hex::encode(Sha256::digest(secret))
}

impl access::Host for HostState {}

impl access::HostTarget for HostState {
    fn operation(&mut self, target: Resource<Target>) -> Result<String> {
        Ok(self.table.get(&target)?.operation.clone())
    }

    fn model(&mut self, target: Resource<Target>) -> Result<String> {
        Ok(self.table.get(&target)?.model.clone())
    }

    fn adapter(&mut self, target: Resource<Target>) -> Result<Option<String>> {
        Ok(self.table.get(&target)?.adapter.clone())
    }

    fn source(&mut self, target: Resource<Target>) -> Result<Option<String>> {
        Ok(self.table.get(&target)?.source.clone())
    }

    fn drop(&mut self, target: Resource<Target>) -> Result<()> {
        self.take(target).map(drop)
    }
}

impl access::HostGrant for HostState {
    fn new(&mut self, tenant: String) -> Result<Resource<Grant>> {
        self.retain(tenant.len())?;
        self.lend(Grant {
            tenant,
            ..Grant::default()
        })
    }

    fn set_priority(&mut self, grant: Resource<Grant>, priority: i32) -> Result<()> {
        self.table.get_mut(&grant)?.priority = priority;
        Ok(())
    }

    fn set_max_tokens(&mut self, grant: Resource<Grant>, count: u32) -> Result<()> {
        self.table.get_mut(&grant)?.max_tokens = Some(count);
        Ok(())
    }

    fn set_max_concurrent(&mut self, grant: Resource<Grant>, count: u32) -> Result<()> {
        self.table.get_mut(&grant)?.max_concurrent = Some(count);
        Ok(())
    }

    fn set_source_credential(
        &mut self,
        grant: Resource<Grant>,
        which: access::SourceCredential,
    ) -> Result<()> {
        self.table.get_mut(&grant)?.callers_credential = matches!(which, access::SourceCredential::Callers);
        Ok(())
    }

    fn drop(&mut self, grant: Resource<Grant>) -> Result<()> {
        self.take(grant).map(drop)
    }
}

impl generation::Host for HostState {}

impl generation::HostServed for HostState {
    fn id(&mut self, served: Resource<Served>) -> Result<String> {
        Ok(self.table.get(&served)?.id.clone())
    }

    fn created(&mut self, served: Resource<Served>) -> Result<u64> {
        Ok(self.table.get(&served)?.created)
    }

    fn model(&mut self, served: Resource<Served>) -> Result<String> {
        Ok(self.table.get(&served)?.model.clone())
    }

    fn base_model(&mut self, served: Resource<Served>) -> Result<String> {
        Ok(self.table.get(&served)?.base_model.clone())
    }

    fn prompt_tokens(&mut self, served: Resource<Served>) -> Result<u32> {
        Ok(self.table.get(&served)?.prompt_tokens)
    }

    fn prompt(&mut self, served: Resource<Served>, index: u32) -> Result<Vec<Token>> {
        let prompts = &self.table.get(&served)?.prompts;
        Ok(prompts.get(index as usize).cloned().unwrap_or_default())
    }

    fn seed(&mut self, served: Resource<Served>) -> Result<u64> {
        Ok(self.table.get(&served)?.seed)
    }

    fn drop(&mut self, served: Resource<Served>) -> Result<()> {
        self.take(served).map(drop)
    }
}

type Call = Resource<GenerationCall>;

impl HostState {
    fn call(&mut self, call: &Call) -> Result<&mut GenerationCall> {
        Ok(self.table.get_mut(call)?)
    }

    /// Keeps texts of the guest's for as long as the request lives.
    fn retain_texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a String>) -> Result<()> {
        let bytes = texts
            .into_iter()
            .map(|text| text.len() + size_of::<String>())
            .sum();
        Ok(self.retain(bytes)?)
    }

    fn retain_prompt(&mut self, prompt: &Prompt) -> Result<()> {
        let bytes = match prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(tokens) => size_of_val(tokens.as_slice()),
            Prompt::Chat(chat) => {
                let options = [&chat.tools, &chat.arguments];
                chat.messages.len() + options.into_iter().flatten().map(String::len).sum::<usize>()
            }
        };
        Ok(self.retain(bytes + size_of::<Prompt>())?)
    }
}

impl generation::HostRequest for HostState {
    fn new(&mut self, prompt: Prompt) -> Result<Call> {
        self.retain_prompt(&prompt)?;
        self.lend(GenerationCall {
            prompts: vec![prompt],
            ..GenerationCall::default()
        })
    }

    fn add_prompt(&mut self, call: Call, prompt: Prompt) -> Result<()> {
        self.retain_prompt(&prompt)?;
        self.call(&call)?.prompts.push(prompt);
        Ok(())
    }

    fn set_model(&mut self, call: Call, model: String) -> Result<()> {
        self.retain_texts([&model])?;
        self.call(&call)?.model = model;
        Ok(())
    }

    fn set_adapter(&mut self, call: Call, id: Option<String>, source: Option<String>) -> Result<()> {
        self.retain_texts(id.iter().chain(&source))?;
        let call = self.call(&call)?;
        (call.adapter, call.adapter_source) = (id, source);
        Ok(())
    }

    fn set_api_token(&mut self, call: Call, token: String) -> Result<()> {
        self.retain_texts([&token])?;
        self.call(&call)?.api_token = Credential {
            secret: Some(token.into()),
        };
        Ok(())
    }

    fn set_framing(&mut self, call: Call, framing: Framing) -> Result<()> {
        self.call(&call)?.framing = Some(framing);
        Ok(())
    }

    fn set_max_tokens(&mut self, call: Call, count: u32) -> Result<()> {
        self.call(&call)?.max_tokens = Some(count);
        Ok(())
    }

    fn set_min_tokens(&mut self, call: Call, count: u32) -> Result<()> {
        self.call(&call)?.min_tokens = count;
        Ok(())
    }

    fn set_choices(&mut self, call: Call, count: u32) -> Result<()> {
        self.call(&call)?.choices = Some(count);
        Ok(())
    }

    fn set_best_of(&mut self, call: Call, count: u32) -> Result<()> {
        self.call(&call)?.best_of = Some(count);
        Ok(())
    }

    fn set_temperature(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.temperature = Some(value);
        Ok(())
    }

    fn set_top_p(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.top_p = Some(value);
        Ok(())
    }

    fn set_top_k(&mut self, call: Call, count: u32) -> Result<()> {
        self.call(&call)?.top_k = Some(count);
        Ok(())
    }

    fn set_min_p(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.min_p = Some(value);
        Ok(())
    }

    fn set_typical_p(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.typical_p = Some(value);
        Ok(())
    }

    fn set_repetition_penalty(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.repetition_penalty = Some(value);
        Ok(())
    }

    fn set_frequency_penalty(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.frequency_penalty = Some(value);
        Ok(())
    }

    fn set_presence_penalty(&mut self, call: Call, value: f32) -> Result<()> {
        self.call(&call)?.presence_penalty = Some(value);
        Ok(())
    }

    fn set_logit_bias(&mut self, call: Call, bias: Vec<(u32, f32)>) -> Result<()> {
        self.retain(size_of_val(bias.as_slice()))?;
        self.call(&call)?.logit_bias = bias;
        Ok(())
    }

    fn set_seed(&mut self, call: Call, seed: u64) -> Result<()> {
        self.call(&call)?.seed = Some(seed);
        Ok(())
    }

    fn set_stop(&mut self, call: Call, sequences: Vec<String>, keep: bool) -> Result<()> {
        self.retain_texts(&sequences)?;
        let call = self.call(&call)?;
        (call.stop, call.keep_stop) = (sequences, keep);
        Ok(())
    }

    fn set_stop_tokens(&mut self, call: Call, tokens: Vec<u32>) -> Result<()> {
        self.retain(size_of_val(tokens.as_slice()))?;
        self.call(&call)?.stop_tokens = tokens;
        Ok(())
    }

    fn set_ignore_eos(&mut self, call: Call, ignore: bool) -> Result<()> {
        self.call(&call)?.ignore_eos = ignore;
        Ok(())
    }

    fn set_logprobs(&mut self, call: Call, alternatives: u32) -> Result<()> {
        self.call(&call)?.logprobs = Some(alternatives);
        Ok(())
    }

    fn set_prompt_logprobs(&mut self, call: Call, alternatives: u32) -> Result<()> {
        self.call(&call)?.prompt_logprobs = Some(alternatives);
        Ok(())
    }

    fn set_echo(&mut self, call: Call, echo: bool) -> Result<()> {
        self.call(&call)?.echo = echo;
        Ok(())
    }

    fn set_truncate(&mut self, call: Call, tokens: u32) -> Result<()> {
        self.call(&call)?.truncate = Some(tokens);
        Ok(())
    }

    fn drop(&mut self, call: Call) -> Result<()> {
        self.take(call).map(drop)
    }
}
