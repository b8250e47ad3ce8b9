//! What the host calls.

use heddle_plugin::{Descriptor, Plugin, Stop, Verdict};

use crate::Matcher;

/// The component: a plugin without settings.
pub struct StopPlugin;

impl Plugin for StopPlugin {
    fn describe() -> Descriptor {
        Descriptor {
            name: "stop".into(),
            version: heddle_plugin::version!(),
            description: "Ends a choice at a stop sequence, wherever in the text it comes.".into(),
            config_schema: Some(heddle_plugin::NO_SETTINGS.into()),
        }
    }

    fn configure(config: &str) -> Result<Self, String> {
        heddle_plugin::no_settings("stop", config)?;
        Ok(Self)
    }

    fn self_test(&self) -> Result<(), String> {
        let mut matcher = Matcher::new(vec!["<end>".into()], false);
        let shown = [matcher.push("text<e".into()), matcher.push("nd>".into())];
        match shown == [("text".into(), None), (String::new(), Some(0))] {
            true => Ok(()),
            false => Err("`text<end>` was not stopped at `<end>`".into()),
        }
    }
}

impl Stop for StopPlugin {
    type Matcher = Matcher;

    fn matcher(&self, sequences: Vec<String>, keep: bool) -> Matcher {
        Matcher::new(sequences, keep)
    }
}

impl heddle_plugin::Matcher for Matcher {
    fn push(&mut self, text: String) -> Verdict {
        let (emit, stopped) = Matcher::push(self, text);
        Verdict { emit, stopped }
    }

    fn flush(&mut self) -> String {
        Matcher::flush(self)
    }
}

heddle_plugin::export!(StopPlugin: stop);
