//! The planner itself: one request in, its prompt out, and what is remembered between requests.
//!
//! *Planning* is arrange the tools, lay out, guard (sentinels), order, render, tokenise, cut. It waits for nothing and knows no thread; `run` is the
//! loop of the thread that owns it.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use super::adapters::{Adapters, KnownAdapter};
use super::answers::Answers;
use super::asked::{PinWish, Wishes};
use super::echoes::Calls;
use super::heads::{Heads, Shown};
use super::kept::Kept;
use super::landing::{Landed, Landing};
use super::live::{Fit, Input, Laid, Mode};
use super::order::{Arrangement, House, Rules, arrange_for_house, arrange_own, opened_by_user, part_live};
use super::pinned_day::PinnedDay;
use super::regions::{self, Region, Regions};
use super::seen::Wish;
use super::sentinel::Controls;
use super::tokens::Tokeniser;
use super::toolset::Toolsets;
use super::{
    Command, Gain, Head, HouseLive, HouseReader, Inbox, Moment, PlanTimings, Planned, Profile, PromptError, Section,
    ToolsUse, Volatility, calls, clock, house_live, refused, wanted,
};
use crate::engine::{ChatTemplate, Special, Vocab};
use crate::request::{LayoutMode, Message, Owner, Request, Role, Token, TokenPrompt, Wanted};

pub struct Planner {
    vocab: Arc<dyn Vocab>,
    model_name: String,
    houses: Vec<House>,
    landing: Landing,
    controls: Arc<Controls>,
    toolsets: Toolsets,
    answers: Answers,
    tokeniser: Tokeniser,
    heads: Heads,
    adapters: Adapters,
    layout: Layout,
    kept: Kept,
    wishes: Wishes,
    house_live: HouseReader,
    /// The day that pins show, where the template prints one.
    pinned: PinnedDay,
    renew: Option<PinsSink>,
    is_stored: bool,
    clock: Box<dyn Fn() -> Moment + Send>,
}

/// Who hears of pins that are others now.
pub type PinsSink = Box<dyn Fn(Vec<Head>) + Send>;

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
            answers: Answers::new(template.clone()),
            toolsets: Toolsets::new(template, controls.clone()),
            heads: Heads::new(controls.clone()),
            controls,
            adapters: Adapters::default(),
            layout: Layout { mode: LayoutMode::Off, n_context_tokens: usize::MAX, file: None },
            kept: Kept::load(None),
            wishes: Wishes::default(),
            house_live: Box::new(|_| HouseLive::default()),
            pinned: PinnedDay::of(Moment::now()),
            renew: None,
            is_stored: false,
            clock: Box::new(Moment::now),
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

    /// `adapters` were loaded with the model, in this order; at most `N_ADAPTERS_MAX`.
    pub fn with_adapters(mut self, adapters: Vec<KnownAdapter>) -> Planner {
        self.adapters = Adapters(adapters);
        self
    }

    /// Reads from `file` which pins clients asked for, and keeps them there.
    pub fn with_wishes(mut self, file: &Path) -> Planner {
        self.wishes = Wishes::load(file);
        self
    }

    /// `read` gives a profile's live values, whenever a request is planned.
    pub fn with_house_live(mut self, read: HouseReader) -> Planner {
        self.house_live = read;
        self
    }

    /// Makes `run` tell `renew` of new pins when the template prints a date and the day is another one.
    pub fn with_renewal(mut self, renew: PinsSink) -> Planner {
        self.renew = Some(renew);
        self
    }

    /// The moment whose day pins show; without it, that of `new`.
    pub fn with_day(mut self, now: Moment) -> Planner {
        self.pinned = PinnedDay::of(now);
        self
    }

    /// Keeps in `file` the day that pins show where they keep it (`optimise`), so that after a restart on another day they are
    /// the same ones until midnight.
    pub fn with_day_file(mut self, file: PathBuf) -> Planner {
        if self.landing.prints_date && self.layout.mode == LayoutMode::Optimise {
            self.pinned = self.pinned.in_file(file);
        }
        self
    }

    /// Whether the template prints the date, and whether it prints the time of day.
    pub fn prints(&self) -> (bool, bool) {
        (self.landing.prints_date, self.landing.prints_time)
    }

    /// Where the parts of a profile's prompt stand in this template, from front to back.
    pub fn places(&self) -> Vec<Landed> {
        self.landing.places(self.tools_by_fallback())
    }

    /// For requests that were written down at some other time: what has the form of a clock is one, whatever it says.
    pub fn for_stored_requests(mut self) -> Planner {
        self.is_stored = true;
        self
    }

    /// Lets `run` ask `clock` what time it is, instead of the machine.
    pub fn set_clock(&mut self, clock: impl Fn() -> Moment + Send + 'static) {
        self.pinned.start_at(clock());
        self.clock = Box::new(clock);
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
        let mut planned = self.plan_with(request, &tools, now, mode, Fit::Free, true)?;
        // What hob adds gives way to what the client sent, what it was told to add last.
        for (mode, fit, with_house) in
            [(mode, Fit::Compact, true), (Mode::Off, Fit::Compact, true), (Mode::Off, Fit::Free, false)]
        {
            let has_additions = planned.sections.iter().any(|section| section.class == Volatility::Live);
            if !has_additions || planned.prompt.tokens.len() < self.layout.n_context_tokens {
                break;
            }
            planned = self.plan_with(request, &tools, now, mode, fit, with_house)?;
        }
        Ok(Planned { tools: tools_use, ..planned })
    }

    /// How many tokens the prompt of `request` has as it was sent, without what hob adds: a client that only counts has no
    /// turn, so no evidence, tool set or record comes of it. That texts are tokenised sooner next time does.
    pub fn count(&mut self, request: &Request, now: &Moment) -> Result<usize, PromptError> {
        let planned = self.plan_with(request, &request.tools, now, Mode::Off, Fit::Free, false)?;
        Ok(planned.prompt.tokens.len())
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
        with_house: bool,
    ) -> Result<Planned, PromptError> {
        let started = Instant::now();
        let house = self.house(&request.model)?;
        let Planner {
            vocab,
            houses,
            landing,
            controls,
            toolsets,
            answers,
            tokeniser,
            heads,
            adapters,
            layout,
            kept,
            is_stored,
            ..
        } = self;
        let is_stored = *is_stored;
        let house = house.map(|house_idx| &houses[house_idx]);
        // In `optimise` each prompt shows the pins' day, and the live block the true one.
        let is_frozen = mode == Mode::Optimise && landing.prints_date;
        let mut wanted = wanted::with_default(&request.wanted, house.and_then(|house| house.thinking)).into_owned();
        wanted::guard(&mut wanted, controls)?;
        // No template, grammar or reader depends on them.
        let adapters = match wanted.adapters.take() {
            Some(wishes) => adapters.set(&wishes)?,
            None => house.and_then(|house| house.adapters).unwrap_or(adapters.default_set()),
        };
        let shown = Shown::at(if is_frozen { self.pinned.shown() } else { now }, wanted);
        let house_slots = match with_house {
            true => {
                let live = house.map(|house| (self.house_live)(&house.name)).unwrap_or_default();
                house_live::slots(&live, is_frozen, now)
            }
            false => Vec::new(),
        };
        let own_tools = !tools.is_empty() && house.is_none_or(|house| house.tools != tools);
        let tools = house.filter(|_| !own_tools).map_or(tools, |house| &house.tools);
        let by_fallback = toolsets.by_fallback();
        let toolset = toolsets.get(tools)?;
        wanted::check(&request.wanted, tools)?;
        let mut answer = answers.get(toolset, tools, &shown.wanted, false)?;
        let prepared = Instant::now();

        // Before anything moves, so that an error names the client's own message.
        let guarded = controls.guard_messages(&request.messages)?;
        let count_tokens = |text: &str| vocab.tokenize(text, Special::Text).len();
        let is_clock = |line: &str, now| match is_stored {
            true => clock::stored_kind(line).is_some(),
            false => clock::kind(line, now).is_some(),
        };
        let laid = match mode {
            Mode::Off if house_slots.is_empty() => Laid::untouched(&request.messages),
            _ => kept.live().lay(&Input {
                owner: request.client.owner(),
                model: &request.model,
                conversation: request.conversation.as_deref(),
                messages: &request.messages,
                house: &house_slots,
                fixed_bytes: marked(&request.messages, now.unix_s),
                tools,
                mode,
                fit,
                now: now.unix_s,
                zone: now.zone(),
                n_context_tokens: layout.n_context_tokens,
                count_tokens: &count_tokens,
                is_clock: &is_clock,
                clock_sentences: &|line, now| clock::parts(line, now).into_iter().map(|(range, _)| range).collect(),
            }),
        };
        let client_messages = match &laid.messages {
            Cow::Borrowed(_) => guarded,
            Cow::Owned(messages) => controls.guard_messages(messages)?,
        };
        let parted = Cow::Borrowed(&*client_messages);
        let parted = if landing.takes_one_call { calls::one_by_one(parted) } else { parted };
        let rules = Rules { landing: *landing, by_fallback, tools: toolset };
        let arrange = |messages| match house {
            Some(house) => arrange_for_house(house, messages, own_tools, &rules),
            None => arrange_own(messages, &rules),
        };
        let mut arrangement = arrange(&parted);
        let arranged = Instant::now();

        let render = |arrangement: &Arrangement| {
            toolset.prepared.render_at(&arrangement.messages, true, shown.unix_s, &shown.wanted)
        };
        let mut text = render(&arrangement);
        let opened = if text.is_err() { opened_by_user(&parted) } else { None };
        if let Some(opened) = &opened {
            arrangement = arrange(opened);
            // What is wrong with it besides is said of what the client sent.
            text = render(&arrangement).or(text);
        }
        let text = text.map_err(refused)?;
        if !text.ends_with(&answer.opening) {
            let other = answers.get(toolset, tools, &shown.wanted, true)?;
            // If it is neither, reader and grammar agree with each other at least.
            answer = if text.ends_with(&other.opening) { other } else { answer };
        }
        let Arrangement { messages, mut sections, ends } = arrangement;
        part_live(&mut sections, &laid.messages, &laid.live);
        let stable = heads.find(toolset, &messages, &ends, &shown, tokeniser).unwrap_or_else(|error| {
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
        let tokenised = Instant::now();
        let Regions { regions, place } = regions::Prompt {
            text: &text,
            tokens: &tokens,
            sections: &sections,
            arranged: &messages,
            messages: &client_messages,
            live: &laid.live,
            tools_in_text: by_fallback,
            place: laid.gain.as_ref().map(|gain| gain.n_bytes_before),
        }
        .regions(tokeniser);
        let n_moved_tokens = laid.gain.as_ref().and_then(|gain| gain.n_moved_tokens);
        let gain = place.map(|from| Gain {
            from,
            // What stands in front of the turns would have been there without what moves.
            to: n_moved_tokens.map(|n_moved| n_head_tokens(&sections, &regions).saturating_sub(n_moved)),
        });
        Ok(Planned {
            prompt: TokenPrompt { tokens, cuts },
            mode,
            sections,
            regions,
            gain,
            profile: house.map(|house| house.name.clone()),
            moved: laid.moved,
            n_gained_bytes: laid.n_gained_bytes,
            live_cause: laid.cause,
            tools: ToolsUse::default(),
            record: laid.record,
            opening: tokeniser.opening(&text).to_owned(),
            rules: answer.rules,
            reader: answer.reader,
            max_tokens: request.max_tokens.or(house.and_then(|house| house.max_tokens)),
            adapters,
            timings: PlanTimings {
                plan: (arranged - prepared) + tokenised.elapsed(),
                render: (prepared - started) + (rendered - arranged),
                tokenise: tokenised - rendered,
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

    /// Forgets what was kept of `whose` prompts and answers, in the layout's file, too; `None`: of all. It costs tokens.
    pub fn forget(&mut self, whose: Option<Owner>) {
        self.kept.forget(whose);
        if let Err(error) = self.wishes.forget(whose) {
            tracing::error!(%error, "pins that clients asked for are not forgotten");
        }
        self.tokeniser.forget(whose);
        self.heads = Heads::new(self.controls.clone());
    }

    /// For when nobody asks: forgets what is old and saves what changed.
    pub fn rest(&mut self, now: &Moment) {
        self.kept.rest(now.unix_s);
    }

    /// What to keep warm: of each profile the head that all its requests share. A profile without a stable end has none.
    pub fn pins(&mut self) -> Result<Vec<Head>, PromptError> {
        self.pinned.recall();
        let Planner { houses, landing, toolsets, tokeniser, heads, adapters, pinned, .. } = self;
        let by_fallback = toolsets.by_fallback();
        let mut pins = Vec::with_capacity(houses.len());
        for house in houses.iter() {
            // As its requests show it that say nothing of thinking.
            let wanted = wanted::with_default(&Wanted::default(), house.thinking).into_owned();
            let shown = Shown::at(pinned.shown(), wanted);
            let toolset = toolsets.get(&house.tools)?;
            let rules = Rules { landing: *landing, by_fallback, tools: toolset };
            let Arrangement { messages, mut sections, ends } = arrange_for_house(house, &[], false, &rules);
            let mut cuts = Vec::with_capacity(ends.len());
            let mut tokens: Vec<Token> = Vec::new();
            for (end, head) in ends.iter().zip(heads.find(toolset, &messages, &ends, &shown, tokeniser)?) {
                if let Some(head) = head.filter(|head| head.len() > tokens.len()) {
                    sections[end.section_idx].cut = Some(head.len());
                    cuts.push(head.len());
                    tokens = head.to_vec();
                }
            }
            // The last is the pin's own end.
            if cuts.pop().is_some() {
                let (name, owner, prompt) = (house.name.clone(), Owner::Public, TokenPrompt { tokens, cuts });
                let adapters = house.adapters.unwrap_or(adapters.default_set());
                pins.push(Head { name, owner, adapters, is_configured: true, prompt, sections });
            } else {
                tracing::warn!(profile = house.name, "no control token ends this profile's head: it is not pinned");
            }
        }
        // One that was made under another name of the model, say, must not keep the house from starting.
        for wish in self.wishes.iter().cloned().collect::<Vec<_>>() {
            match self.head(&wish, &self.pinned.shown().clone()) {
                Ok(head) => pins.push(head),
                Err(error) => tracing::warn!(pin = wish.name, %error, "a pin is left out"),
            }
        }
        Ok(pins)
    }

    /// What to keep warm for `wish`: all that stays the same in front of its client's conversations.
    pub fn head(&mut self, wish: &PinWish, now: &Moment) -> Result<Head, PromptError> {
        let Planned { prompt, adapters, sections, .. } = self.plan(&wish.request(), now)?;
        let TokenPrompt { mut tokens, mut cuts } = prompt;
        tokens.truncate(cuts.pop().ok_or(PromptError::NoHead)?);
        let prompt = TokenPrompt { tokens, cuts };
        let (name, owner) = (wish.name.clone(), wish.owner());
        Ok(Head { name, owner, adapters, is_configured: false, prompt, sections })
    }

    /// The pins anew, if the template prints the date and it is another one than theirs. In `optimise` they keep theirs, but for
    /// one that they had before the start: that is over with the day of the start.
    pub fn turn_day(&mut self, now: &Moment) -> Result<Option<Vec<Head>>, PromptError> {
        let is_over = match self.layout.mode {
            LayoutMode::Optimise => self.pinned.is_over(now),
            _ => now.day() != self.pinned.shown().day(),
        };
        if !self.follows_calendar() || !is_over {
            return Ok(None);
        }
        self.pinned.turn(now);
        self.pins().map(Some)
    }

    fn follows_calendar(&self) -> bool {
        self.landing.prints_date
            && (!self.houses.is_empty() || self.wishes.iter().next().is_some())
            && (self.layout.mode != LayoutMode::Optimise || self.pinned.is_kept())
    }

    /// Gives new pins out where there are any.
    fn look_at_calendar(&mut self) {
        match self.turn_day(&(self.clock)()) {
            Ok(None) => {}
            Ok(Some(pins)) => {
                if let Some(renew) = &self.renew {
                    tracing::info!(
                        n_pins = pins.len(),
                        "it is another day, which the chat template prints: pins are renewed"
                    );
                    renew(pins);
                }
            }
            Err(error) => tracing::error!(%error, "pins of another day"),
        }
    }

    /// Answers until the last handle is gone. The body of the planner's thread.
    pub fn run(mut self, inbox: Inbox) {
        loop {
            self.look_at_calendar();
            let until_midnight = self.follows_calendar().then(|| (self.clock)().until_midnight());
            let rest_after = self.kept.rest_after().into_iter().chain(until_midnight).min();
            let command = match rest_after {
                Some(rest_after) => inbox.0.recv_timeout(rest_after),
                None => inbox.0.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                // Nobody waits for it any more.
                Ok(Command::Plan { reply, .. }) if reply.is_closed() => {}
                Ok(Command::Plan { request, reply }) => {
                    let planned = self.plan(&request, &(self.clock)());
                    // A client that left in the meantime wants no answer.
                    let _ = reply.send(planned);
                }
                Ok(Command::Count { request, reply }) => {
                    let counted = self.count(&request, &(self.clock)());
                    let _ = reply.send(counted);
                }
                Ok(Command::Remember(spoken)) => self.remember(&spoken),
                Ok(Command::Forget { whose, done }) => {
                    self.forget(whose);
                    // Whoever asked may have gone; it is forgotten all the same.
                    let _ = done.send(());
                }
                Ok(Command::Head { wish, reply }) => {
                    let now = (self.clock)();
                    let _ = reply.send(self.head(&wish, &now));
                }
                Ok(Command::KeepPin { wish, done }) => {
                    let _ = done.send(self.wishes.keep(*wish));
                }
                Ok(Command::RemovePin { name, owner, done }) => {
                    let _ = done.send(self.wishes.remove(&name, owner));
                }
                Err(RecvTimeoutError::Timeout) => self.rest(&(self.clock)()),
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

/// Forgets, in the files that outlive the daemon, what was kept of the prompts of `whose` client; `None`: of all. For when no
/// daemon runs.
pub fn forget_files(layout: &Path, wishes: &Path, whose: Option<Owner>) -> Result<(), String> {
    let mut kept = Kept::load(Some(layout.to_owned()));
    kept.forget(whose);
    if kept.has_failed() {
        return Err(format!("{} cannot be written", layout.display()));
    }
    Wishes::load(wishes).forget(whose).map(drop)
}

/// Tokens in front of the conversation's turns.
fn n_head_tokens(sections: &[Section], regions: &[Region]) -> usize {
    let is_head = |region: &&Region| sections[region.section_idx].class < Volatility::Turn;
    regions.iter().take_while(is_head).last().map_or(0, |region| region.end)
}

/// The bytes of the system messages, one after the other, that the client marked for its own cache: all up to its last mark
/// there, but for lines at the front that are made for each request. Claude Code's billing header is such a line: it
/// stands before the marks, and the service that those are meant for takes it out.
fn marked(messages: &[Message], now: i64) -> Range<usize> {
    let leading = messages.iter().take_while(|message| matches!(message.role, Role::System | Role::Developer));
    let (mut start, mut end, mut n_bytes, mut opens) = (0, 0, 0, true);
    for Message { content, n_marked_bytes, .. } in leading {
        if *n_marked_bytes > 0 {
            end = n_bytes + n_marked_bytes;
        }
        if opens {
            let is_open = |line: &&str| {
                line.trim().is_empty() || clock::kind(line.trim_end(), now) == Some(clock::Volatile::Nonce)
            };
            let n_open: usize = content.split_inclusive('\n').take_while(is_open).map(str::len).sum();
            start = n_bytes + n_open;
            opens = n_open == content.len();
        }
        n_bytes += content.len();
    }
    start.min(end)..end
}
