//! The planner itself: one request in, its prompt out, and what is remembered between requests.
//!
//! *Planning* is arrange the tools, lay out, guard (sentinels), order, render, tokenise, cut. It waits for nothing and knows no thread; `run` is the
//! loop of the thread that owns it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use super::echoes::Calls;
use super::heads::Heads;
use super::kept::Kept;
use super::landing::Landing;
use super::live::{Fit, Input, Laid, Mode};
use super::order::{Arrangement, House, Rules, arrange_for_house, arrange_own, part_live};
use super::seen::Wish;
use super::sentinel::Controls;
use super::tokens::Tokeniser;
use super::toolset::Toolsets;
use super::{
    Command, Head, Inbox, Moment, PlanTimings, Planned, Profile, PromptError, ToolsUse, Volatility, calls, clock,
    refused,
};
use crate::engine::{ChatTemplate, Special, Vocab};
use crate::request::{LayoutMode, Message, Request, Role, Token, TokenPrompt};

pub struct Planner {
    vocab: Arc<dyn Vocab>,
    model_name: String,
    houses: Vec<House>,
    landing: Landing,
    controls: Arc<Controls>,
    toolsets: Toolsets,
    tokeniser: Tokeniser,
    heads: Heads,
    layout: Layout,
    kept: Kept,
}

/// How clients' own prompts are laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Of requests that do not choose.
    pub mode: LayoutMode,
    /// Cells of the context: prompt and answer of one request must fit in.
    pub n_context_tokens: usize,
    /// Where what was learnt outlives a restart.
    pub file: Option<PathBuf>,
}

impl Planner {
    /// Lays nothing out until `with_layout` says how. Learns where things land in `template` and how `vocab` splits, both by trying. An error names what in `profiles`
    /// cannot be told from control tokens.
    pub fn new(
        vocab: Arc<dyn Vocab>,
        template: Arc<dyn ChatTemplate>,
        model_name: String,
        profiles: Vec<Profile>,
    ) -> Result<Planner, PromptError> {
        let controls = Arc::new(Controls::of(vocab.as_ref())?);
        let houses = profiles.into_iter().map(|profile| House::new(profile, &controls)).collect::<Result<_, _>>()?;
        let planner = Planner {
            model_name,
            houses,
            landing: Landing::find(template.as_ref(), &controls),
            tokeniser: Tokeniser::new(vocab.clone(), controls.clone()),
            vocab,
            toolsets: Toolsets::new(template, controls.clone()),
            heads: Heads::new(controls.clone()),
            controls,
            layout: Layout { mode: LayoutMode::Off, n_context_tokens: usize::MAX, file: None },
            kept: Kept::load(None),
        };
        if planner.tools_by_fallback() {
            tracing::info!("the chat template has no place for tools: they are written into the system text");
        }
        Ok(planner)
    }

    /// Reads what was learnt before from the layout's file.
    pub fn with_layout(mut self, layout: Layout) -> Planner {
        self.kept = Kept::load(layout.file.clone());
        self.layout = layout;
        self
    }

    /// Whether tools are written into the system text, because the template has no place for them.
    pub fn tools_by_fallback(&self) -> bool {
        self.toolsets.by_fallback()
    }

    /// Whether a profile's documents stand as a first exchange, outside the system text.
    pub fn documents_in_exchange(&self, has_tools: bool) -> bool {
        self.landing.documents_in_exchange(has_tools)
    }

    /// The prompt of `request`. What is remembered changes, the prompt of an equal request soon after never does.
    pub fn plan(&mut self, request: &Request, now: &Moment) -> Result<Planned, PromptError> {
        let mode = request.layout.unwrap_or(self.layout.mode);
        let (tools, tools_use) = self.arrange_tools(request, now, mode)?;
        let mut planned = self.plan_with(request, &tools, now, mode, Fit::Free)?;
        // What hob adds gives way to what the client sent.
        for (mode, fit) in [(mode, Fit::Compact), (Mode::Off, Fit::Free)] {
            let has_additions = planned.sections.iter().any(|section| section.class == Volatility::Live);
            if !has_additions || planned.prompt.tokens.len() < self.layout.n_context_tokens {
                break;
            }
            planned = self.plan_with(request, &tools, now, mode, fit)?;
        }
        Ok(Planned { tools: tools_use, ..planned })
    }

    /// The request's tools as they are to be rendered.
    fn arrange_tools<'r>(
        &mut self,
        request: &'r Request,
        now: &Moment,
        mode: Mode,
    ) -> Result<(Cow<'r, [String]>, ToolsUse), PromptError> {
        let as_sent = Cow::Borrowed(&*request.tools);
        if request.tools.is_empty() || matches!(mode, Mode::Off | Mode::Safe) {
            return Ok((as_sent, ToolsUse::default()));
        }
        let house = self.house(&request.model)?.map_or(&[][..], |house_idx| &self.houses[house_idx].tools);
        let owner = request.client.owner();
        let wish = Wish { owner, model: &request.model, tools: &request.tools, house, now: now.unix_s };
        let (arranged, tools_use) = self.kept.tools().arrange(&wish);
        let arranged = arranged.filter(|_| mode == Mode::Optimise);
        // What cannot be prepared is told in the client's own order.
        let arranged = arranged.filter(|tools| self.toolsets.get(tools).is_ok());
        Ok((arranged.map_or(as_sent, Cow::Owned), tools_use))
    }

    fn plan_with(
        &mut self,
        request: &Request,
        tools: &[String],
        now: &Moment,
        mode: Mode,
        fit: Fit,
    ) -> Result<Planned, PromptError> {
        let started = Instant::now();
        let house = self.house(&request.model)?;
        let Planner { vocab, houses, landing, controls, toolsets, tokeniser, heads, layout, kept, .. } = self;
        let house = house.map(|house_idx| &houses[house_idx]);
        let own_tools = !tools.is_empty() && house.is_none_or(|house| house.tools != tools);
        let tools = house.filter(|_| !own_tools).map_or(tools, |house| &house.tools);
        let by_fallback = toolsets.by_fallback();
        let toolset = toolsets.get(tools)?;
        let prepared = Instant::now();

        // Before anything moves, so that an error names the client's own message.
        let guarded = controls.guard_messages(&request.messages)?;
        let count_tokens = |text: &str| vocab.tokenize(text, Special::Text).len();
        let laid = match mode {
            Mode::Off => Laid::untouched(&request.messages),
            _ => kept.live().lay(&Input {
                owner: request.client.owner(),
                model: &request.model,
                conversation: request.conversation.as_deref(),
                messages: &request.messages,
                n_fixed_bytes: 0,
                mode,
                fit,
                now: now.unix_s,
                zone: now.zone(),
                n_context_tokens: layout.n_context_tokens,
                count_tokens: &count_tokens,
                is_clock: &|line, now| clock::kind(line, now).is_some(),
            }),
        };
        let messages = match &laid.messages {
            Cow::Borrowed(_) => guarded,
            Cow::Owned(messages) => controls.guard_messages(messages)?,
        };
        let messages = if landing.takes_one_call { calls::one_by_one(messages) } else { messages };
        let rules = Rules { landing: *landing, by_fallback, tools: toolset };
        let Arrangement { messages, mut sections, ends } = match house {
            Some(house) => arrange_for_house(house, &messages, own_tools, &rules),
            None => arrange_own(&messages, &rules),
        };
        part_live(&mut sections, &laid.messages, &laid.live);
        let arranged = Instant::now();

        let text = toolset.prepared.render(&messages, true).map_err(refused)?;
        let stable = heads.find(toolset, &messages, &ends, tokeniser).unwrap_or_else(|error| {
            // The request itself renders, and cuts are only worth time.
            tracing::debug!(%error, "no cuts");
            vec![None; ends.len()]
        });
        let rendered = Instant::now();

        let tokens = tokeniser.tokenise(&text, request.client.owner(), &Calls::of(&request.messages));
        let mut cuts: Vec<usize> = Vec::with_capacity(ends.len());
        for (end, head) in ends.iter().zip(stable) {
            // A conversation that begins unlike a user's turn can differ from the head's last tokens.
            let Some(cut) = head.filter(|head| tokens.starts_with(head)).map(|head| head.len()) else { continue };
            if cut < tokens.len() && cuts.last().is_none_or(|&last| last < cut) {
                cuts.push(cut);
                sections[end.section_idx].cut = Some(cut);
            }
        }
        Ok(Planned {
            prompt: TokenPrompt { tokens, cuts },
            sections,
            profile: house.map(|house| house.name.clone()),
            moved: laid.moved,
            n_gained_bytes: laid.n_gained_bytes,
            live_cause: laid.cause,
            tools: ToolsUse::default(),
            record: laid.record,
            opening: tokeniser.opening(&text).to_owned(),
            max_tokens: request.max_tokens.or(house.and_then(|house| house.max_tokens)),
            timings: PlanTimings {
                plan: arranged - prepared,
                render: (prepared - started) + (rendered - arranged),
                tokenise: rendered.elapsed(),
            },
        })
    }

    /// Keeps the tokens of an answer for when its client sends it back, and which turn it answered.
    pub fn remember(&mut self, spoken: &super::Spoken) {
        self.tokeniser.remember(spoken);
        if let Some(record) = spoken.record {
            let answer = Message::text(Role::Assistant, spoken.text.as_str());
            self.kept.live().answered(record, &Message { tool_calls: spoken.calls.clone(), ..answer });
        }
    }

    /// What to keep warm: of each profile the head that all its requests share. A profile without a stable end has none.
    pub fn pins(&mut self) -> Result<Vec<Head>, PromptError> {
        let Planner { houses, landing, toolsets, tokeniser, heads, .. } = self;
        let by_fallback = toolsets.by_fallback();
        let mut pins = Vec::with_capacity(houses.len());
        for house in houses.iter() {
            let toolset = toolsets.get(&house.tools)?;
            let rules = Rules { landing: *landing, by_fallback, tools: toolset };
            let Arrangement { messages, mut sections, ends } = arrange_for_house(house, &[], false, &rules);
            let mut cuts = Vec::with_capacity(ends.len());
            let mut tokens: Vec<Token> = Vec::new();
            for (end, head) in ends.iter().zip(heads.find(toolset, &messages, &ends, tokeniser)?) {
                if let Some(head) = head.filter(|head| head.len() > tokens.len()) {
                    sections[end.section_idx].cut = Some(head.len());
                    cuts.push(head.len());
                    tokens = head.to_vec();
                }
            }
            // The last is the pin's own end.
            if cuts.pop().is_some() {
                pins.push(Head { name: house.name.clone(), prompt: TokenPrompt { tokens, cuts }, sections });
            } else {
                tracing::warn!(profile = house.name, "no control token ends this profile's head: it is not pinned");
            }
        }
        Ok(pins)
    }

    /// Answers until the last handle is gone. The body of the planner's thread.
    pub fn run(mut self, inbox: Inbox) {
        loop {
            let command = match self.kept.rest_after() {
                Some(rest_after) => inbox.0.recv_timeout(rest_after),
                None => inbox.0.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                // Nobody waits for it any more.
                Ok(Command::Plan { reply, .. }) if reply.is_closed() => {}
                Ok(Command::Plan { request, reply }) => {
                    let planned = self.plan(&request, &Moment::now());
                    // A client that left in the meantime wants no answer.
                    let _ = reply.send(planned);
                }
                Ok(Command::Remember(spoken)) => self.remember(&spoken),
                Err(RecvTimeoutError::Timeout) => self.kept.rest(Moment::now().unix_s),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.kept.save();
    }

    /// The index of the profile called `model`; `None`: it is the model itself.
    fn house(&self, model: &str) -> Result<Option<usize>, PromptError> {
        let found = self.houses.iter().position(|house| house.name == model);
        if found.is_none() && model != self.model_name {
            let known: Vec<&str> =
                self.houses.iter().map(|house| house.name.as_str()).chain([self.model_name.as_str()]).collect();
            return Err(PromptError::UnknownModel { name: model.to_string(), known: known.join(", ") });
        }
        Ok(found)
    }
}
