//! Defines `cold`: what a fresh simulated engine says to a prompt, one sequence alone; and the prompt that a daemon has to make
//! of messages. Whatever a daemon did before, its answer must be this one.

use std::sync::Arc;

use hob::engine::simulated::{Attention, ByteVocab, ChatMl, SimulatedModel};
use hob::engine::{
    AnswerRules, Batch, BatchToken, ContextOptions, Engine, KvType, Model, SeqId, Special, Threads, Vocab,
};
use hob::prompt::{Moment, Planner, Profile};
use hob::request::{AdapterSet, Client, Dialect, Message, N_ADAPTERS_MAX, Priority, Request, Sampling, Token, Wanted};
use serde_json::{Value, json};

use crate::house::MODEL;

/// Bytes as tokens, of which the model says only what a client can send back unchanged: a history then holds what the
/// cells hold.
struct Ascii(ByteVocab);

impl Vocab for Ascii {
    fn n_tokens(&self) -> usize {
        self.0.n_tokens()
    }

    fn tokenize(&self, text: &str, special: Special) -> Vec<Token> {
        self.0.tokenize(text, special)
    }

    fn piece(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0).ok().filter(|byte| (b' '..=b'~').contains(byte)));
    }

    fn is_end(&self, token: Token) -> bool {
        self.0.is_end(token)
    }

    fn bos(&self) -> Option<Token> {
        None
    }

    fn control_tokens(&self) -> &[(Token, String)] {
        self.0.control_tokens()
    }
}

pub(crate) fn model(attention: Attention) -> SimulatedModel {
    let template = ChatMl { takes_tools: true };
    SimulatedModel::with(Arc::new(Ascii(ByteVocab::new())), Arc::new(template)).attention(attention)
}

/// The prompt as the daemon has to compute it.
pub(crate) fn planner(model: &SimulatedModel, profiles: Vec<Profile>) -> Planner {
    Planner::new(model.vocab(), model.template(), MODEL.to_owned(), profiles).unwrap()
}

pub(crate) fn plan(planner: &mut Planner, model: &str, messages: &[Message]) -> Vec<Token> {
    let request = Request {
        model: model.to_owned(),
        messages: messages.to_vec(),
        tools: Vec::new(),
        sampling: Sampling::default(),
        wanted: Wanted::default(),
        n_logprobs: None,
        max_tokens: None,
        stop: Vec::new(),
        client: Client { name: String::new(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: None,
        priority: Priority::default(),
    };
    planner.plan(&request, &Moment::utc(0)).unwrap().prompt.tokens
}

/// Text, finish and number of tokens that a fresh engine, one sequence alone, answers in a context of `n_cells`.
pub(crate) fn cold(
    attention: Attention,
    prompt: &[Token],
    max_tokens: usize,
    n_cells: usize,
) -> (String, String, usize) {
    cold_under(AdapterSet::NONE, attention, prompt, max_tokens, n_cells)
}

/// The same under `adapters`.
pub(crate) fn cold_under(
    adapters: AdapterSet,
    attention: Attention,
    prompt: &[Token],
    max_tokens: usize,
    n_cells: usize,
) -> (String, String, usize) {
    let model = model(attention).adapters(N_ADAPTERS_MAX);
    let vocab = model.vocab();
    let n_batch = prompt.len();
    let options = ContextOptions { n_cells, n_seq_max: 1, n_batch, kv_type: KvType::F16, threads: Threads::same(1) };
    let mut engine = model.open(&options).unwrap();
    engine.set_adapters(adapters).unwrap();
    let mut sampler =
        engine.sampler(&Sampling { temperature: 0.0, ..Sampling::default() }, &AnswerRules::default(), &[]).unwrap();
    let (mut pending, mut pos, mut said, mut n_said) = (prompt.to_vec(), 0, Vec::new(), 0);
    loop {
        let n = pending.len();
        let row = |(i, &token)| BatchToken { token, pos: pos + i, seq: SeqId(0), wants_logits: i + 1 == n };
        engine.decode(&Batch { tokens: pending.iter().enumerate().map(row).collect() }).unwrap();
        pos += n;
        let token = engine.sample(n - 1, &mut sampler).unwrap();
        let finish = if vocab.is_end(token) {
            Some("stop")
        } else {
            n_said += 1;
            vocab.piece(token, &mut said);
            (n_said == max_tokens || pos == n_cells).then_some("length")
        };
        if let Some(finish) = finish {
            return (String::from_utf8(said).unwrap(), finish.to_owned(), n_said);
        }
        pending = vec![token];
    }
}

/// `messages` as a client sends them.
pub(crate) fn wire(messages: &[Message]) -> Value {
    messages.iter().map(|message| json!({ "role": message.role.template_name(), "content": message.content })).collect()
}
