//! Chat templates: Jinja, as transformers renders them.
//!
//! The template belongs to the model and the messages to a client, so neither is trusted: a template has so much fuel, which
//! bounds its time and its memory alike, and can neither read files nor include other templates.

mod environment;
mod files;
mod json;
mod messages;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use minijinja::{Environment, Value};

use crate::{
    error::{Error, Result},
    request::ChatPrompt,
};
use messages::Content;

/// The longest template, in bytes.
const MAX_SOURCE: usize = 1 << 20;
/// The longest prompt, in bytes.
const MAX_PROMPT: usize = 16 << 20;

/// The template for conversations without tools, and with them where there is no other.
const DEFAULT: &str = "default";
/// The template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// A chat template (Jinja, as transformers renders it). Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the other special tokens.
    variables: Vec<(String, Value)>,
    /// What each template can read, by its name.
    content: Vec<(String, Content)>,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the special tokens that templates read.
    ///
    /// # Errors
    /// [`Error::Template`]: the template is too long or is not Jinja.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let token = |name: &str, content: Option<&str>| Some((name.to_owned(), Value::from(content?)));
        let variables = [token("bos_token", bos), token("eos_token", eos)];
        let templates = vec![(DEFAULT.to_owned(), source.to_owned())];
        Self::compile(templates, variables.into_iter().flatten().collect())
    }

    /// Compiles named templates.
    fn compile(templates: Vec<(String, String)>, variables: Vec<(String, Value)>) -> Result<Self> {
        let mut environment = environment::new();
        let names: Vec<String> = templates.iter().map(|(name, _)| name.clone()).collect();
        for (name, source) in templates {
            if source.len() > MAX_SOURCE {
                return Err(Error::Template(format!(
                    "template `{name}` has {} bytes; {MAX_SOURCE} are allowed",
                    source.len()
                )));
            }
            let source = environment::without_generation_tags(&source);
            environment
                .add_template_owned(name, source)
                .map_err(environment::explain)?;
        }
        let mut inner = Inner {
            environment,
            variables,
            content: Vec::new(),
        };
        for name in names {
            let content = Content::probe(|messages| inner.apply(&name, messages, &Arguments::default()));
            inner.content.push((name, content));
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Renders a conversation. The prompt has the model's special tokens in it: it is to be tokenised without adding others.
    ///
    /// `arguments` are further variables. Two of them mean something here: `add_generation_prompt` (true unless it is said
    /// otherwise) is the template's; with `continue_final_message` the prompt ends where the last message does, so that the model
    /// goes on with it.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`]: messages, tools or arguments have the wrong shape. [`Error::Template`]: the template refused them
    /// (in its own words) or failed.
    pub fn render(&self, chat: &ChatPrompt) -> Result<String> {
        let mut arguments = Arguments::read(chat)?;
        let name = self.choose(arguments.tools.is_some())?;
        let content = self.inner.content.iter().find(|(other, _)| other == name);
        let content = content.map_or(Content::Text, |(_, content)| *content);
        let mut messages = messages::prepare(&chat.messages, content)?;
        if !arguments.continue_final_message {
            return self.inner.apply(name, &messages, &arguments);
        }
        if arguments.add_generation_prompt == Some(true) {
            return Err(invalid(
                "continue_final_message",
                "and `add_generation_prompt` exclude each other: a message that is continued has begun",
            ));
        }
        arguments.add_generation_prompt = Some(false);
        messages::mark_end(&mut messages)?;
        messages::cut_at_mark(self.inner.apply(name, &messages, &arguments)?)
    }

    /// The name of the template for a conversation.
    fn choose(&self, tools: bool) -> Result<&str> {
        let names = || self.inner.content.iter().map(|(name, _)| name.as_str());
        let wanted = |wanted: &str| names().find(|&name| name == wanted);
        let chosen = if tools { wanted(TOOL_USE) } else { None };
        chosen.or_else(|| wanted(DEFAULT)).ok_or_else(|| {
            let names: Vec<&str> = names().collect();
            Error::Template(format!(
                "it has no template `{DEFAULT}`, only {}",
                names.join(", ")
            ))
        })
    }
}

impl Inner {
    fn apply(&self, name: &str, messages: &serde_json::Value, arguments: &Arguments) -> Result<String> {
        let template = self
            .environment
            .get_template(name)
            .map_err(environment::explain)?;
        let variable = |(name, value): &(String, Value)| (name.clone(), value.clone());
        let mut context: Vec<(String, Value)> = self.variables.iter().map(variable).collect();
        context.push(("documents".to_owned(), Value::from(())));
        context.extend(arguments.further.iter().map(variable));
        context.push(("messages".to_owned(), json::to_value(messages)?));
        context.push((
            "tools".to_owned(),
            arguments.tools.clone().unwrap_or(Value::from(())),
        ));
        let generation = arguments.add_generation_prompt.unwrap_or(true);
        context.push(("add_generation_prompt".to_owned(), generation.into()));
        let prompt = template
            .render(Value::from_pairs(context))
            .map_err(environment::explain)?;
        if prompt.len() > MAX_PROMPT {
            return Err(Error::Template(format!(
                "the prompt has {} bytes; {MAX_PROMPT} are allowed",
                prompt.len()
            )));
        }
        Ok(prompt)
    }
}

/// What a conversation has beside its messages.
#[derive(Default)]
struct Arguments {
    /// None if there are none or the list is empty.
    tools: Option<Value>,
    add_generation_prompt: Option<bool>,
    continue_final_message: bool,
    further: Vec<(String, Value)>,
}

impl Arguments {
    fn read(chat: &ChatPrompt) -> Result<Self> {
        let mut read = Self::default();
        match &chat.tools {
            None | Some(serde_json::Value::Null) => {}
            Some(serde_json::Value::Array(tools)) if tools.is_empty() => {}
            Some(tools @ serde_json::Value::Array(_)) => read.tools = Some(json::to_value(tools)?),
            Some(_) => return Err(invalid("tools", "must be a list of tool definitions")),
        }
        let further = match &chat.arguments {
            None | Some(serde_json::Value::Null) => return Ok(read),
            Some(serde_json::Value::Object(arguments)) => arguments,
            Some(_) => return Err(invalid("arguments", "must be an object of template variables")),
        };
        let flag = |name: &'static str| match further.get(name) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(serde_json::Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(invalid(name, "must be true or false")),
        };
        read.add_generation_prompt = flag("add_generation_prompt")?;
        read.continue_final_message = flag("continue_final_message")?.unwrap_or(false);
        for (name, value) in further {
            read.further.push((name.clone(), json::to_value(value)?));
        }
        Ok(read)
    }
}

fn invalid(parameter: &'static str, message: impl Into<String>) -> Error {
    Error::InvalidRequest {
        parameter,
        message: message.into(),
    }
}
