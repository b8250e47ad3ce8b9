//! Continues a prompt greedily and says how fast: `generate MODEL PROMPT [--adapter FOLDER]... [--chat] [--tokens N]
//! [--batch N] [--kv-mib N]`.
//!
//! MODEL is a folder, a GGUF file or `pocket`. With several adapters, and with `--batch`, the sequences run in one batch; the
//! adapters take turns in it, and the first sequence of each is shown.

use std::{path::PathBuf, time::Instant};

use heddle_engine::{
    Error, Result,
    adapter::peft,
    batch::{Batch, DeviceAdapter, LogitRows, Span},
    hub::{Files, catalogue::embedded},
    ids::{BLOCK_TOKENS, BlockId, TokenId},
    model::{BackendChoice, LoadOptions, LoadedModel, load},
    request::ChatPrompt,
    text::Detokenizer,
};

/// What the command line says.
struct Arguments {
    model: Files,
    prompt: String,
    adapters: Vec<PathBuf>,
    chat: bool,
    tokens: usize,
    batch: usize,
    kv_bytes: usize,
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let begin = Instant::now();
    let mut model = load(
        &arguments.model,
        &LoadOptions {
            backend: BackendChoice::default(),
            kv_bytes: arguments.kv_bytes,
            context: None,
        },
    )?;
    println!(
        "{}, loaded in {:.1} s",
        model.device,
        begin.elapsed().as_secs_f32()
    );

    let modules = model.config.modules();
    let loader = model.runner.adapter_loader();
    let mut adapters = vec![];
    for folder in &arguments.adapters {
        let name = folder.display().to_string();
        let weights = peft::load(&name, &Files::Folder(folder.clone()), &modules, 512)?;
        adapters.push((name, Some(loader.load(&weights)?)));
    }
    if adapters.is_empty() {
        adapters.push(("base".to_owned(), None));
    }
    let prompt = prompt(&model, &arguments)?;
    let mut sequences: Vec<_> = (0..arguments.batch.max(adapters.len()))
        .map(|index| adapters[index % adapters.len()].1.clone())
        .collect();
    let answers = generate(&mut model, &prompt, &mut sequences, arguments.tokens)?;
    for ((name, _), answer) in adapters.iter().zip(answers) {
        let mut text = Detokenizer::new(&model.tokenizer);
        let mut shown: String = answer.iter().map(|token| text.push(*token)).collect();
        shown.push_str(&text.finish());
        println!("{name}: {shown}");
    }
    Ok(())
}

/// Prefills all sequences in one step, decodes until each has ended, and prints the speed of both.
fn generate(
    model: &mut LoadedModel,
    prompt: &[TokenId],
    sequences: &mut [Option<DeviceAdapter>],
    tokens: usize,
) -> Result<Vec<Vec<TokenId>>> {
    let blocks = (prompt.len() + tokens).div_ceil(BLOCK_TOKENS) as u32;
    let mut answers = vec![Vec::new(); sequences.len()];
    let mut ended = vec![false; sequences.len()];
    let mut decoded = 0;
    let mut decode_time = 0.0;
    for step in 0..tokens {
        let mut batch = Batch::default();
        let running: Vec<_> = (0..sequences.len()).filter(|index| !ended[*index]).collect();
        for index in &running {
            let answer: &Vec<TokenId> = &answers[*index];
            let (start, input) = match answer.last() {
                None => (0, prompt),
                Some(last) => (prompt.len() + answer.len() - 1, std::slice::from_ref(last)),
            };
            let begin = batch.tokens.len();
            batch.tokens.extend(input);
            batch.spans.push(Span {
                rows: begin..batch.tokens.len(),
                start,
                blocks: (*index as u32 * blocks..(*index as u32 + 1) * blocks)
                    .map(BlockId)
                    .collect(),
                adapter: sequences[*index].clone(),
                logits: LogitRows::Last,
            });
        }
        if running.is_empty() {
            break;
        }
        let begin = Instant::now();
        let logits = model.runner.forward(&batch)?;
        let time = begin.elapsed().as_secs_f32();
        if step == 0 {
            println!(
                "prefill: {} tokens in {time:.2} s, {:.0} tokens/s",
                batch.tokens.len(),
                batch.tokens.len() as f32 / time
            );
        } else {
            decoded += batch.tokens.len();
            decode_time += time;
        }
        for (row, index) in running.into_iter().enumerate() {
            let best = logits
                .row(row)
                .iter()
                .enumerate()
                .max_by(|a, b| a.1.total_cmp(b.1));
            let token = TokenId(best.map_or(0, |(token, _)| token as u32));
            ended[index] = model.eos.contains(&token);
            answers[index].push(token);
        }
    }
    println!(
        "decode: {decoded} tokens in {decode_time:.2} s, {:.1} tokens/s in {} sequences",
        decoded as f32 / decode_time,
        sequences.len()
    );
    Ok(answers)
}

fn prompt(model: &LoadedModel, arguments: &Arguments) -> Result<Vec<TokenId>> {
    let template = match &model.chat_template {
        Some(template) if arguments.chat => template,
        None if arguments.chat => return Err(Error::Template("this model has none".to_owned())),
        _ => return model.tokenizer.encode(&arguments.prompt, true),
    };
    let text = template.render(&ChatPrompt {
        messages: serde_json::json!([{"role": "user", "content": arguments.prompt}]),
        ..ChatPrompt::default()
    })?;
    model.tokenizer.encode(&text, false)
}

fn arguments() -> Result<Arguments> {
    let wrong = |parameter, message: &str| Error::InvalidRequest {
        parameter,
        message: message.to_owned(),
    };
    let mut words = std::env::args().skip(1);
    let model = words
        .next()
        .ok_or_else(|| wrong("MODEL", "is missing: a folder, a GGUF file or `pocket`"))?;
    let prompt = words.next().ok_or_else(|| wrong("PROMPT", "is missing"))?;
    let mut arguments = Arguments {
        model: match embedded(&model) {
            Some(set) => Files::Embedded(set),
            None if model.ends_with(".gguf") => Files::Gguf(model.into()),
            None => Files::Folder(model.into()),
        },
        prompt,
        adapters: Vec::new(),
        chat: false,
        tokens: 48,
        batch: 1,
        kv_bytes: 1 << 30,
    };
    while let Some(word) = words.next() {
        let mut number = |parameter| {
            let value = words.next().and_then(|value| value.parse::<usize>().ok());
            value.ok_or_else(|| wrong(parameter, "wants a number"))
        };
        match word.as_str() {
            "--chat" => arguments.chat = true,
            "--tokens" => arguments.tokens = number("--tokens")?,
            "--batch" => arguments.batch = number("--batch")?,
            "--kv-mib" => arguments.kv_bytes = number("--kv-mib")? << 20,
            "--adapter" => match words.next() {
                Some(folder) => arguments.adapters.push(folder.into()),
                None => return Err(wrong("--adapter", "wants a folder")),
            },
            _ => return Err(wrong("arguments", &format!("have `{word}`, which is unknown"))),
        }
    }
    Ok(arguments)
}
