//! `hob plan`: what the configured model and profiles will cost, before the weights are loaded.
//!
//! A *plan* is the sums and what does not fit; a *misfit* says by how much, and which setting would do. `table` says a
//! plan to people. Only the model's header, vocabulary and template are read; nothing is changed.

mod request;
mod table;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use request::{RequestError, RequestPlan};
use serde::Serialize;

use super::check::EX_CONFIG;
use super::format::{Format, bytes, grouped};
use crate::config::{self, Config, ConfigError, Fault};
use crate::daemon::documents;
use crate::engine::{EngineError, KvType, Memory, MemoryClass, Model, ModelFacts, Special, Vocab};
use crate::kv::budget::{LEFT_FOR_REQUESTS, n_seq_max};
use crate::kv::{Holder, check_pins};
use crate::prompt::{self, Head, Moment, Planner, Profile, PromptError, Section, Volatility};
use crate::request::{LayoutMode, Token};
use crate::scheduler::n_batch;

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("profiles")]
    Profiles(#[from] PromptError),
    #[error("{}: cannot be planned", path.display())]
    Request { path: PathBuf, source: Box<RequestError> },
    #[error("{}: cannot be read", path.display())]
    Body { path: PathBuf, source: io::Error },
}

/// llama.cpp rounds the number of cells up to a multiple of this.
const CELLS_STEP: usize = 256;

/// The formats that need fewer bytes than those before them.
const KV_TYPES: [KvType; 3] = [KvType::F16, KvType::Q8_0, KvType::Q4_0];

/// Plans what `config` names, as `hob serve` would start it.
#[cfg(feature = "llama")]
pub fn plan(config: &Config) -> Result<Plan, PlanError> {
    let profiles = config::read_profiles(config)?;
    let model = super::model::load_vocabulary(config)?;
    let machine_bytes = crate::engine::llama::memory_bytes(config.model.gpu, config::memory_limit());
    Ok(Plan::of(config, profiles, &*model, machine_bytes)?)
}

/// Plans the request in the file `body`, without a model run.
#[cfg(feature = "llama")]
pub fn plan_request(config: &Config, body: &Path) -> Result<RequestPlan, PlanError> {
    let profiles = config::read_profiles(config)?;
    let bytes = std::fs::read(body).map_err(|source| PlanError::Body { path: body.to_owned(), source })?;
    let model = super::model::load_vocabulary(config)?;
    RequestPlan::of(config, profiles, &*model, &bytes)
        .map_err(|source| PlanError::Request { path: body.to_owned(), source: Box::new(source) })
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub fits: bool,
    pub model: ModelPart,
    pub template: TemplatePart,
    pub kv: KvPart,
    pub profiles: Vec<ProfilePart>,
    pub pins: PinsPart,
    pub memory: MemoryPart,
    /// Empty if it fits.
    pub misfits: Vec<Misfit>,
    pub warnings: Vec<Fault>,
}

/// What the header says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelPart {
    pub name: String,
    pub path: PathBuf,
    pub architecture: String,
    /// Layers that have K/V of their own.
    pub n_layers: usize,
    /// Of each layer; `None`: layers differ.
    pub n_kv_heads: Option<u64>,
    /// Of all layers together.
    pub n_kv_heads_all: u64,
    pub k_head_size: u64,
    pub v_head_size: u64,
    pub n_vocab: u64,
    pub n_context_train: u64,
    /// Whether sequences share cells and can be cut anywhere; else whole sequences only.
    /// `rewindable`, `guarded`, `checkpointed` or `opaque`.
    pub memory: &'static str,
    pub shares: bool,
    /// By number.
    pub adapters: Vec<AdapterPart>,
}

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdapterPart {
    pub name: String,
    pub scale: f32,
    /// It counts where nobody says what does.
    pub default: bool,
}

/// What the chat template does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TemplatePart {
    /// The parts of a profile's prompt, from front to back.
    pub places: Vec<PlacePart>,
    pub prints_date: bool,
    pub prints_time: bool,
    /// What is done about the date: the layout mode says so.
    pub freezes_date: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacePart {
    pub what: &'static str,
    /// A conversation can be cut off at its end.
    pub closes: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvPart {
    #[serde(rename = "type")]
    pub kv_type: &'static str,
    /// Bytes of so many numbers: quantised ones share a scale.
    pub number_bytes: (u64, u64),
    pub bytes_per_token: u64,
    /// `model.context`, rounded up as llama.cpp does.
    pub n_cells: usize,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfilePart {
    pub name: String,
    /// Tokens kept warm; `None`: no control token ends what all its requests share, so nothing is.
    pub n_tokens: Option<usize>,
    pub kv_bytes: u64,
    pub sections: Vec<SectionPart>,
    /// What the template and hob's own words add to the sections.
    pub n_tokens_around: usize,
    /// Names of what stands in front of each question.
    pub live: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionPart {
    pub name: String,
    pub class: &'static str,
    /// Of its text alone: an approximation, as tokens can reach over its ends.
    pub n_tokens: usize,
    pub kv_bytes: u64,
    pub lands: Lands,
    /// Tokens from the front up to its end, if a conversation can be cut off there.
    pub cut: Option<usize>,
    /// Of a document: what decides its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_per_month: Option<f64>,
}

/// Where a section stands in the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lands {
    SystemText,
    /// A user's turn and a fixed answer to it.
    FirstExchange,
    /// Where the chat template puts tools.
    Template,
    /// In the system text, by hob: the template has no place for tools.
    Fallback,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PinsPart {
    /// Cells that all profiles take together; what they share is counted once, if it can be shared.
    pub n_tokens: usize,
    pub kv_bytes: u64,
    /// Cells beside them.
    pub n_left: usize,
    /// Cells that must be left.
    pub n_left_min: usize,
}

/// Bytes that the daemon will need; `compute` and `output` are estimates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryPart {
    pub weights: u64,
    pub adapters: u64,
    pub kv: u64,
    pub compute: u64,
    pub output: u64,
    /// For K/V that leaves the cells: `cache.ram`, or what of it fits beside the rest.
    pub cache_ram: u64,
    pub total: u64,
    /// What the machine has and this process may take, used or not.
    pub machine: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Misfit {
    #[serde(flatten)]
    pub fault: Fault,
    pub missing_tokens: usize,
    pub missing_bytes: u64,
    /// Settings of which each would do.
    pub remedies: Vec<String>,
}

impl AdapterPart {
    fn of(adapter: &config::Adapter) -> AdapterPart {
        AdapterPart { name: adapter.name.clone(), scale: adapter.scale.get(), default: adapter.is_default }
    }
}

impl Plan {
    /// What `profiles` on `model` will cost on a machine that has `machine_bytes` of memory.
    pub fn of<M: Model>(
        config: &Config,
        mut profiles: Vec<Profile>,
        model: &M,
        machine_bytes: u64,
    ) -> Result<Plan, PromptError> {
        let history = documents::order(&config.telemetry.path, &mut profiles, &Moment::now());
        let (facts, vocab) = (model.facts(), model.vocab());
        let planner = Planner::new(vocab.clone(), model.template(), config.model.name.clone(), profiles.clone())?;
        let mut planner = planner.with_adapters(config.model.known_adapters());
        let heads = planner.pins()?;
        let (parallel, context) = (config.model.parallel, config.model.context);
        let n_seq_max = n_seq_max(parallel, heads.len(), context, facts.n_vocab, |n| model.n_ids(n));
        let n_ids = model.n_ids(n_seq_max);
        let live = config.profiles.iter().map(|profile| (profile.name.clone(), live_names(profile))).collect();
        let sums = Sums { config: &config.model, cache: &config.cache, live, facts, n_ids, machine_bytes };
        let n_cells = config.model.context.next_multiple_of(CELLS_STEP);
        let shares = model.memory() == Memory::Rewindable;

        let mut misfits = Vec::new();
        let holder = |head: &Head| Holder { owner: head.owner, adapters: head.adapters };
        let tokens: Vec<(Holder, &[Token])> =
            heads.iter().map(|head| (holder(head), head.prompt.tokens.as_slice())).collect();
        let n_pinned = check_pins(&tokens, n_cells, shares).unwrap_or_else(|too_large| {
            misfits.push(sums.pins_misfit(&config.file, too_large.needed, too_large.missing));
            too_large.needed
        });
        misfits.extend(sums.memory_misfit(&config.file, n_cells, n_pinned));

        let memory = sums.memory(config.model.kv_type, n_cells);
        let mut warnings = Vec::from_iter(sums.long_context(&config.file));
        warnings.extend(sums.small_disk(&config.file, n_pinned));
        // Where the model itself does not fit, that is what has to be told.
        warnings.extend(sums.smaller_cache(&config.file, &memory).filter(|_| misfits.is_empty()));
        let template = template(config, &planner);
        if template.prints_time {
            let problem = "the chat template prints the time of day: nothing behind it can be reused, unless layout.mode \
                 is \"optimise\" or model.chat_template names one that does not";
            let mode =
                LayoutMode::NAMES.iter().find(|(_, mode)| *mode == config.layout.mode).map_or("", |(name, _)| name);
            warnings.push(fault(&config.file, "layout.mode", format!("{mode:?}"), problem));
        }
        let mut parts = Vec::with_capacity(profiles.len());
        for (index, profile) in profiles.iter().enumerate() {
            let head = heads.iter().find(|head| head.name == profile.name);
            if head.is_none() {
                let problem = "is not kept warm: it is empty, or this template ends it with no control token";
                warnings.push(fault(&config.file, format!("profile[{index}]"), format!("{:?}", profile.name), problem));
            }
            parts.push(sums.profile(profile, &history.changes_per_month[index], head, &planner, vocab.as_ref()));
        }
        Ok(Plan {
            fits: misfits.is_empty(),
            model: sums.model(model.memory_class()),
            template,
            kv: sums.kv(n_cells),
            profiles: parts,
            pins: PinsPart {
                n_tokens: n_pinned,
                kv_bytes: sums.kv_bytes(n_pinned),
                n_left: n_cells.saturating_sub(n_pinned),
                n_left_min: LEFT_FOR_REQUESTS,
            },
            memory,
            misfits,
            warnings,
        })
    }

    /// 0, or `EX_CONFIG` if something does not fit.
    pub fn exit_code(&self) -> u8 {
        if self.fits { 0 } else { EX_CONFIG }
    }

    /// A table, or one JSON object.
    pub fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        if format == Format::Json {
            serde_json::to_writer_pretty(&mut *out, self).map_err(io::Error::from)?;
            return writeln!(out);
        }
        out.write_all(table::table(self, format).as_bytes())
    }
}

fn template(config: &Config, planner: &Planner) -> TemplatePart {
    let (prints_date, prints_time) = planner.prints();
    let part = |place: prompt::Landed| PlacePart { what: place.what, closes: place.closes };
    TemplatePart {
        places: planner.places().into_iter().map(part).collect(),
        prints_date,
        prints_time,
        freezes_date: prints_date && config.layout.mode == LayoutMode::Optimise,
    }
}

fn live_names(profile: &config::ProfileFiles) -> Vec<String> {
    let clock = profile.has_clock.then(|| "the time".to_owned());
    clock.into_iter().chain(profile.live.iter().map(|entry| entry.name.clone())).collect()
}

/// What the parts are computed from.
struct Sums<'a> {
    config: &'a config::Model,
    cache: &'a config::Cache,
    /// Of each profile, what stands in front of its questions.
    live: Vec<(String, Vec<String>)>,
    facts: &'a ModelFacts,
    /// Sequence ids of the context.
    n_ids: usize,
    machine_bytes: u64,
}

impl Sums<'_> {
    fn kv_bytes(&self, n_tokens: usize) -> u64 {
        n_tokens as u64 * self.facts.kv_bytes_per_token(self.config.kv_type)
    }

    fn model(&self, class: MemoryClass) -> ModelPart {
        let facts = self.facts;
        ModelPart {
            name: self.config.name.clone(),
            path: self.config.path.clone(),
            architecture: facts.architecture.clone(),
            n_layers: facts.kv_heads.len(),
            n_kv_heads: facts.kv_heads_of_all(),
            n_kv_heads_all: facts.kv_heads.iter().sum(),
            k_head_size: facts.k_head_size,
            v_head_size: facts.v_head_size,
            n_vocab: facts.n_vocab,
            n_context_train: facts.n_context_train,
            memory: class.name(),
            shares: class.memory() == Memory::Rewindable,
            adapters: self.config.adapters.iter().map(AdapterPart::of).collect(),
        }
    }

    fn kv(&self, n_cells: usize) -> KvPart {
        let kv_type = self.config.kv_type;
        KvPart {
            kv_type: kv_type.name(),
            number_bytes: kv_type.block(),
            bytes_per_token: self.facts.kv_bytes_per_token(kv_type),
            n_cells,
            bytes: self.kv_bytes(n_cells),
        }
    }

    /// `changes`: of each document.
    fn profile(
        &self,
        profile: &Profile,
        changes: &[Option<f64>],
        head: Option<&Head>,
        planner: &Planner,
        vocab: &dyn Vocab,
    ) -> ProfilePart {
        let mut documents = profile.documents.iter().zip(changes);
        let by_fallback = planner.tools_by_fallback();
        let mut section = |section: &Section| {
            let mut changes_per_month = None;
            let (lands, text) = if section.class == Volatility::Document {
                let in_exchange = planner.documents_in_exchange(!profile.tools.is_empty());
                let lands = if in_exchange { Lands::FirstExchange } else { Lands::SystemText };
                let (document, changes) = documents.next().expect("each document has one section");
                changes_per_month = *changes;
                (lands, document.text.clone())
            } else if section.name == "tools" {
                match by_fallback {
                    true => (Lands::Fallback, prompt::tools_text(&profile.tools).unwrap_or_default()),
                    false => (Lands::Template, profile.tools.join("\n")),
                }
            } else {
                (Lands::SystemText, profile.system.clone())
            };
            let n_tokens = vocab.tokenize(text.trim(), Special::Text).len();
            SectionPart {
                name: section.name.clone(),
                class: section.class.name(),
                n_tokens,
                kv_bytes: self.kv_bytes(n_tokens),
                lands,
                cut: section.cut,
                changes_per_month,
            }
        };
        let sections: Vec<SectionPart> = head.iter().flat_map(|head| &head.sections).map(&mut section).collect();
        let n_tokens = head.map(|head| head.prompt.tokens.len());
        let n_in_sections: usize = sections.iter().map(|section| section.n_tokens).sum();
        ProfilePart {
            name: profile.name.clone(),
            n_tokens,
            kv_bytes: self.kv_bytes(n_tokens.unwrap_or(0)),
            n_tokens_around: n_tokens.unwrap_or(0).saturating_sub(n_in_sections),
            live: self
                .live
                .iter()
                .find(|(name, _)| *name == profile.name)
                .map(|(_, live)| live.clone())
                .unwrap_or_default(),
            sections,
        }
    }

    fn memory(&self, kv_type: KvType, n_cells: usize) -> MemoryPart {
        let n_batch = n_batch(self.config.parallel).min(n_cells) as u64;
        let (weights, adapters) = (self.facts.weight_bytes, self.facts.adapter_bytes);
        let kv = n_cells as u64 * self.facts.kv_bytes_per_token(kv_type);
        let compute = self.facts.compute_bytes(n_cells as u64, n_batch);
        let output = self.facts.output_bytes(self.n_ids as u64);
        let needed = weights + adapters + kv + compute + output;
        let cache_ram = config::that_fits(self.cache.ram, self.machine_bytes, needed);
        let (total, machine) = (needed + cache_ram, self.machine_bytes);
        MemoryPart { weights, adapters, kv, compute, output, cache_ram, total, machine }
    }

    /// Bytes that must be there. What leaves the cells is kept in RAM only where there is some left.
    fn needed(&self, kv_type: KvType, n_cells: usize) -> u64 {
        let memory = self.memory(kv_type, n_cells);
        memory.total - memory.cache_ram
    }

    fn fits(&self, kv_type: KvType, n_cells: usize) -> bool {
        self.needed(kv_type, n_cells) <= self.machine_bytes
    }

    /// Says so if less is kept in RAM than configured.
    fn smaller_cache(&self, file: &Path, memory: &MemoryPart) -> Option<Fault> {
        (memory.cache_ram < self.cache.ram).then(|| {
            let problem = format!(
                "is more than is left beside model and context: {} are used; make it smaller or give hob more memory",
                bytes(memory.cache_ram)
            );
            fault(file, "cache.ram", format!("{:?}", config::write_size(self.cache.ram)), problem)
        })
    }

    /// Says so if the profiles' K/V is more than may lie on disk.
    fn small_disk(&self, file: &Path, n_pinned: usize) -> Option<Fault> {
        let needed = self.kv_bytes(n_pinned);
        (self.cache.disk > 0 && needed > self.cache.disk).then(|| {
            let problem = format!(
                "the profiles need {}: files that they have already stay, others are not written, and their profiles are \
                 computed at each start",
                bytes(needed)
            );
            fault(file, "cache.disk", format!("{:?}", config::write_size(self.cache.disk)), problem)
        })
    }

    /// The first format, from the configured one on, with which `n_cells` fit.
    fn kv_type_for(&self, n_cells: usize) -> Option<KvType> {
        let smaller = KV_TYPES.into_iter().skip_while(|kv_type| *kv_type != self.config.kv_type);
        smaller.into_iter().find(|kv_type| self.fits(*kv_type, n_cells))
    }

    /// The pins need `n_needed` cells, `n_missing` more than they can have.
    fn pins_misfit(&self, file: &Path, n_needed: usize, n_missing: usize) -> Misfit {
        let missing_bytes = self.kv_bytes(n_missing);
        let n_cells = (n_needed + LEFT_FOR_REQUESTS).next_multiple_of(CELLS_STEP);
        let remedies = match self.kv_type_for(n_cells) {
            Some(kv_type) if kv_type == self.config.kv_type => vec![format!("model.context = {n_cells}")],
            Some(kv_type) => vec![format!("model.context = {n_cells} with model.kv_type = \"{}\"", kv_type.name())],
            None => Vec::new(),
        };
        let is_trained = n_cells as u64 <= self.facts.n_context_train;
        let instead = match (&remedies[..], is_trained) {
            ([remedy], true) => format!("{remedy} would do, or shorter profiles"),
            ([remedy], false) => format!(
                "shorten the profiles; {remedy} would do, too, but is more than the {} tokens that the model was \
                 trained for",
                grouped(self.facts.n_context_train)
            ),
            _ => "shorten the profiles, or take a smaller model: this machine's memory does not hold more".to_owned(),
        };
        let problem = format!(
            "the profiles need {} tokens and {} must stay for requests: {} tokens too few, which are {} of K/V; {instead}",
            grouped(n_needed as u64),
            grouped(LEFT_FOR_REQUESTS as u64),
            grouped(n_missing as u64),
            bytes(missing_bytes)
        );
        let fault = fault(file, "model.context", self.config.context, problem);
        Misfit { fault, missing_tokens: n_missing, missing_bytes, remedies }
    }

    /// Whether all of it is more than the machine has. Beside the cells, `n_pinned` must stay possible.
    fn memory_misfit(&self, file: &Path, n_cells: usize, n_pinned: usize) -> Option<Misfit> {
        let needed = self.needed(self.config.kv_type, n_cells);
        let missing_bytes = needed.checked_sub(self.machine_bytes).filter(|n_bytes| *n_bytes > 0)?;
        let quantised = self.kv_type_for(n_cells).map(|kv_type| format!("model.kv_type = \"{}\"", kv_type.name()));
        let n_least = (n_pinned + LEFT_FOR_REQUESTS).next_multiple_of(CELLS_STEP);
        let shorter = (n_least..n_cells)
            .step_by(CELLS_STEP)
            .rev()
            .find(|n_cells| self.fits(self.config.kv_type, *n_cells))
            .map(|n_cells| format!("model.context = {n_cells}"));
        let remedies: Vec<String> = quantised.into_iter().chain(shorter).collect();
        let instead = match &remedies[..] {
            [] => "take a smaller model, or one with fewer bits per weight".to_owned(),
            remedies => format!("{} would do", remedies.join(" or ")),
        };
        let problem = format!(
            "weights, K/V and buffers need {}, this machine has {}: {} too few; {instead}",
            bytes(needed),
            bytes(self.machine_bytes),
            bytes(missing_bytes)
        );
        let missing_tokens = missing_bytes.div_ceil(self.facts.kv_bytes_per_token(self.config.kv_type).max(1)) as usize;
        let fault = fault(file, "model.context", self.config.context, problem);
        Some(Misfit { fault, missing_tokens, missing_bytes, remedies })
    }

    /// Says so if the context is longer than the model knows.
    fn long_context(&self, file: &Path) -> Option<Fault> {
        let (context, trained) = (self.config.context, self.facts.n_context_train);
        (context as u64 > trained).then(|| {
            let trained = grouped(trained);
            let problem =
                format!("the model was trained for {trained} tokens: answers in longer conversations go wrong");
            fault(file, "model.context", context, problem)
        })
    }
}

fn fault(file: &Path, key: impl Into<String>, value: impl ToString, problem: impl Into<String>) -> Fault {
    Fault { file: file.to_owned(), key: key.into(), value: Some(value.to_string()), problem: problem.into() }
}

#[cfg(test)]
mod tests;
