//! What a client asked and what it gets back, in words that both the HTTP side and the scheduler speak.
//!
//! A *request* is one client's question with everything that belongs to it; an *event* is one piece of its answer.
//! Nothing here knows a wire format (`http/` does) or a sequence id (`scheduler/` does).

mod adapters;

use std::time::Duration;

pub use adapters::{AdapterSet, AdapterWish, N_ADAPTERS_MAX, Scale, WhichAdapter};

/// One entry of the model's vocabulary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub i32);

/// A chat request, checked and free of its dialect.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of a profile or of the model itself, as the client wrote it.
    pub model: String,
    pub messages: Vec<Message>,
    /// The JSON text of each tool definition (`{"type":"function",…}`), byte for byte as the client sent it, in its order.
    pub tools: Vec<String>,
    pub sampling: Sampling,
    pub wanted: Wanted,
    /// Beside each generated token so many of the likeliest are told with their probability; `None`: none, and not its own.
    pub n_logprobs: Option<usize>,
    /// Upper number of tokens to generate; `None`: the profile's, else what the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    pub client: Client,
    /// The client's own name for the conversation, if it gives one.
    pub conversation: Option<String>,
    /// The request's own wish; `None`: as configured.
    pub layout: Option<LayoutMode>,
    pub priority: Priority,
}

/// What hob may do with what changes in a client's own prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutMode {
    /// Nothing is read or changed.
    Off,
    /// Nothing is changed; what would be gained is said.
    Observe,
    /// Clocks, list items, rows and `key: value` lines may move, and short sentences from the very end.
    Safe,
    /// Prose may move, too.
    Optimise,
}

impl LayoutMode {
    /// Each with the word that stands in configurations and headers.
    pub const NAMES: [(&str, LayoutMode); 4] = [
        ("off", LayoutMode::Off),
        ("observe", LayoutMode::Observe),
        ("safe", LayoutMode::Safe),
        ("optimise", LayoutMode::Optimise),
    ];

    pub fn name(self) -> &'static str {
        match self {
            LayoutMode::Off => "off",
            LayoutMode::Observe => "observe",
            LayoutMode::Safe => "safe",
            LayoutMode::Optimise => "optimise",
        }
    }
}

/// Whose turn it is when several wait: higher ones go first, and lower ones give way to them. How, and how nobody starves, say
/// `scheduler::batch` (steps) and `scheduler::queue` (places).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// Nobody waits for it, as for a conversation's title: what it leaves pushes nothing out.
    Background,
    /// Somebody will look at it later.
    Normal,
    /// Somebody listens or looks on.
    #[default]
    Interactive,
}

impl Priority {
    /// Each with the word that stands in configurations and headers; the default first.
    pub const NAMES: [(&str, Priority); 3] =
        [("interactive", Priority::Interactive), ("normal", Priority::Normal), ("background", Priority::Background)];
}

/// Who asks. Without keys a client is its source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub name: String,
    /// The client's own `cache_salt`: parts its cached prefixes from each other.
    pub salt: Option<String>,
    pub dialect: Dialect,
}

impl Client {
    /// The owner of what this client's requests leave in the cache: half of it says which client, half which of its salts.
    pub fn owner(&self) -> Owner {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.name.as_bytes());
        let client = hasher.finalize();
        hasher.update(&[0]);
        if let Some(salt) = &self.salt {
            hasher.update(&[1]);
            hasher.update(salt.as_bytes());
        }
        let mut id = *hasher.finalize().as_bytes();
        id[..CLIENT_BYTES].copy_from_slice(&client.as_bytes()[..CLIENT_BYTES]);
        Owner::Private(id)
    }
}

/// Bytes of an owner that name the client: 128 bits of a hash do not meet by chance.
const CLIENT_BYTES: usize = 16;

/// Who may match a held prefix: everybody, or one (client, salt) alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// Configured pins belong to the house.
    Public,
    Private([u8; 32]),
}

impl Owner {
    /// Whether a request of owner `self` may use what `held_by` left.
    pub fn may_see(self, held_by: Owner) -> bool {
        held_by == Owner::Public || held_by == self
    }

    /// Whether both are of one client, whatever its salts.
    pub fn is_client_of(self, other: Owner) -> bool {
        self.client() == other.client()
    }

    /// Whose share of the computing is used, whatever its salts.
    pub fn client(self) -> ClientId {
        match self {
            Owner::Public => ClientId(None),
            Owner::Private(id) => ClientId(id.first_chunk().copied()),
        }
    }
}

/// One client, or the house itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientId(Option<[u8; CLIENT_BYTES]>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    OpenAi,
    Ollama,
    Anthropic,
}

impl Dialect {
    pub fn name(self) -> &'static str {
        match self {
            Dialect::OpenAi => "openai",
            Dialect::Ollama => "ollama",
            Dialect::Anthropic => "anthropic",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The name that chat templates know; most do not know `developer`, which is a system message to them.
    pub fn template_name(self) -> &'static str {
        match self {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message of the conversation. Text parts of one message are joined by a line feed before they come here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
    pub reasoning: Option<String>,
    /// The speaker's or tool's name, if the client gave one.
    pub name: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// On a tool message: the call it answers.
    pub tool_call_id: Option<String>,
    /// So many bytes at the content's beginning stand before a mark that the client set for its own cache; 0: it set none.
    pub n_marked_bytes: usize,
}

impl Message {
    /// A message of plain text.
    pub fn text(role: Role, content: impl Into<String>) -> Message {
        Message {
            role,
            content: content.into(),
            reasoning: None,
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            n_marked_bytes: 0,
        }
    }
}

/// A call that the model made and the client sends back as history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    /// JSON text, keys in the client's order.
    pub arguments: String,
}

/// What the answer may consist of, and how it is thought of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Wanted {
    pub tool_choice: ToolChoice,
    /// Whether an answer may hold one call only.
    pub one_call: bool,
    pub shape: Shape,
    pub thinking: Thinking,
    /// Names that the template may ask for, each with a JSON text.
    pub template_args: Vec<(String, String)>,
    /// Adapters that count for it; `None`: its profile's, else those in force by default.
    pub adapters: Option<Vec<AdapterWish>>,
}

/// Whether the answer calls a tool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    /// This one.
    Named(String),
}

/// The form of the answer's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Shape {
    #[default]
    Free,
    /// Any JSON object.
    Json,
    /// The JSON text of a schema.
    Schema(String),
    /// GBNF.
    Grammar(String),
}

/// Whether and how long the model thinks before it speaks. `None`: as the template has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Thinking {
    pub is_on: Option<bool>,
    /// A word that templates with levels know: `low`, `medium`, `high`.
    pub effort: Option<String>,
    /// Most tokens of it.
    pub budget: Option<usize>,
}

/// How the next token is chosen. The defaults are OpenAI's where it has them and llama.cpp's elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: i32,
    pub min_p: f32,
    /// `None`: a new one for each request.
    pub seed: Option<u32>,
    pub penalties: Penalties,
    /// Penalises what goes on repeating (the "don't repeat yourself" sampler).
    pub dry: Dry,
    /// Keeps what lies within so many standard deviations of the best logit; 0 keeps all.
    pub top_n_sigma: f32,
    /// Keeps what is about as surprising as expected, up to this much of the probability; 1 keeps all.
    pub typical_p: f32,
    pub xtc: Xtc,
    /// The temperature moves by up to so much with the entropy of what could come; 0: not at all.
    pub dynatemp_range: f32,
    pub dynatemp_exponent: f32,
    /// Keeps the surprise of the text at a level, in place of the other samplers.
    pub mirostat: Option<Mirostat>,
    /// Candidates that each sampler keeps at least.
    pub min_keep: usize,
    pub logit_bias: Vec<(Token, f32)>,
    /// The model cannot end its answer.
    pub ignores_end: bool,
}

/// What makes tokens less likely that came before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Tokens looked back on, prompt included; `None`: all.
    pub last_n: Option<usize>,
    /// Divides; 1 does nothing.
    pub repeat: f32,
    /// Subtracted for each time, and once.
    pub frequency: f32,
    pub presence: f32,
}

/// See <https://github.com/oobabooga/text-generation-webui/pull/5677>.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// 0: off.
    pub multiplier: f32,
    pub base: f32,
    /// Repetitions of so many tokens cost nothing.
    pub allowed_length: usize,
    /// `None`: all.
    pub last_n: Option<usize>,
    /// Texts that no repetition reaches over.
    pub breakers: Vec<String>,
}

/// Leaves out the likeliest tokens but one, at times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// 0: never.
    pub probability: f32,
    pub threshold: f32,
}

/// See <https://arxiv.org/abs/2007.14966>.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// The first version, with its estimate of the tail, or the simpler second.
    pub is_first: bool,
    pub tau: f32,
    pub eta: f32,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            penalties: Penalties { last_n: Some(64), repeat: 1.0, frequency: 0.0, presence: 0.0 },
            dry: Dry {
                multiplier: 0.0,
                base: 1.75,
                allowed_length: 2,
                last_n: None,
                breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            },
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc: Xtc { probability: 0.0, threshold: 0.1 },
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: None,
            min_keep: 0,
            logit_bias: Vec::new(),
            ignores_end: false,
        }
    }
}

/// A prompt as the engine computes it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TokenPrompt {
    /// The whole prompt, BOS included.
    pub tokens: Vec<Token>,
    /// Token offsets where a section ends, rising, each right after a control token and within 1..tokens.len().
    pub cuts: Vec<usize>,
}

/// What the answer consists of, in this order: one `Admitted`, any number of `Logprobs` and `Text`, then `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Admitted(CacheUse),
    /// If they were asked for: of tokens whose text is yet to come.
    Logprobs(Vec<TokenLogprob>),
    /// Whole UTF-8 characters, never empty.
    Text(String),
    Done(Done),
    /// The engine could not go on with this request; text for the client.
    Failed(String),
}

/// A generated token's probability before anything chose among the candidates, and those of the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: Candidate,
    pub top: Vec<Candidate>,
}

/// A token that could have come.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub bytes: Vec<u8>,
    /// Natural logarithm.
    pub logprob: f32,
}

/// What the cache did for a prompt. `n_prompt = n_cached + computed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    pub n_prompt: usize,
    /// Tokens not computed for this request.
    pub n_cached: usize,
    /// Of `n_cached`, those that came back from RAM or disk for it.
    pub n_restored: usize,
    /// Why the first computed token was computed.
    pub cause: MissCause,
}

/// Why the first token behind the hit had to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissCause {
    /// All that can be reused was: only what is new at the end was computed.
    Appended,
    /// Nothing of this prompt was ever seen.
    Cold,
    /// It was held once, and its cells were taken back.
    Evicted,
    /// Held text differs from here on.
    Diverged,
    /// The prefix is held, but only whole sequences can be reused with this model.
    Checkpoint,
    /// It was saved below the cells and could not be brought back.
    RestoreFailed,
    /// It is saved below the cells, and computing it is faster.
    RestoreSlower,
    /// It was held once, and is larger than what is kept below the cells.
    TooLarge,
    /// It lay on disk, computed by another model.
    Model,
    /// It lay on disk, in another number format of K and V.
    KvType,
    /// It is held, or lay on disk, computed under other adapters or scales.
    Adapter,
    /// It lay on disk, written by another version or under other settings.
    Settings,
}

impl MissCause {
    /// The word that stands in `x-hob-cache`, logs and SQL.
    pub fn name(self) -> &'static str {
        match self {
            MissCause::Appended => "appended",
            MissCause::Cold => "cold",
            MissCause::Evicted => "evicted",
            MissCause::Diverged => "diverged",
            MissCause::Checkpoint => "checkpoint",
            MissCause::RestoreFailed => "restore_failed",
            MissCause::RestoreSlower => "restore_slower",
            MissCause::TooLarge => "too_large",
            MissCause::Model => "model",
            MissCause::KvType => "kv_type",
            MissCause::Adapter => "adapter",
            MissCause::Settings => "settings",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub finish: Finish,
    /// The stop text that ended it, if one did.
    pub stop: Option<String>,
    pub cache: CacheUse,
    pub n_generated: usize,
    /// The generated tokens, in order, `n_generated` of them.
    pub generated: Vec<Token>,
    pub timings: Timings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its answer, or a stop text did.
    Stop,
    /// `max_tokens` or the context ended it.
    Length,
    /// The client went away.
    Cancelled,
    /// A step failed.
    Error,
}

impl Finish {
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
            Finish::Error => "error",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timings {
    /// From submit to admission.
    pub queue: Duration,
    /// From the request read to its first token.
    pub ttft: Option<Duration>,
    /// Admission to the end of the prompt.
    pub prefill: Duration,
    /// First to last generated token.
    pub decode: Duration,
}
