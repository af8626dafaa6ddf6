//! Random conversations through the simulated engine over HTTP: whatever was cached, parked, evicted or cancelled before,
//! an answer is the one that a fresh engine gives to the same prompt.
//!
//! A *client* is a thread with a `cache_salt`, conversations and a random generator of its own; each user's text holds a
//! marker that stands nowhere else. The engine's next token is a hash of every cell it sees, so one wrong cell, or one of
//! another client, is another answer. Seeds are printed; the order between clients is the machine's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fastrand::Rng;
use hob::engine::simulated::{Attention, Faults};
use hob::prompt::{Document, Planner, Profile};
use hob::request::{AdapterSet, Message, Role, Scale, Token};
use serde_json::{Value, json};

use crate::cold::{cold, cold_under, model, plan, planner, wire};
use crate::house::{Answer, House, Lower, MODEL, PATIENCE, Setup, Usage};

/// What the clients share, and how they treat the daemon.
struct World {
    seed: u64,
    attention: Attention,
    context: usize,
    parallel: usize,
    queue: usize,
    profiles: Vec<Profile>,
    n_clients: usize,
    n_turns: usize,
    /// One request in how many is dropped; 0: none.
    cancels: usize,
    /// Before one request in how many the next step is made to fail; 0: none.
    failures: usize,
    /// The tiers below the cells.
    cache: Lower,
    /// Requests name adapters, or do not, turn by turn.
    with_adapters: bool,
}

impl Default for World {
    fn default() -> World {
        World {
            seed: 1,
            attention: Attention::Full,
            context: 1400,
            parallel: 3,
            queue: 2,
            profiles: profiles(),
            n_clients: 6,
            n_turns: 30,
            cancels: 5,
            failures: 0,
            cache: Lower::default(),
            with_adapters: false,
        }
    }
}

/// Two assistants with a policy in common.
fn profiles() -> Vec<Profile> {
    let policy = "Answer in one sentence, and say so when you do not know. ".repeat(3);
    let boiler = Document { title: "boiler".to_owned(), text: "The boiler was serviced in May. ".repeat(4) };
    let profile = |name: &str, system: String, documents| Profile {
        name: name.to_owned(),
        system,
        documents,
        ..Profile::default()
    };
    vec![
        profile("house", policy.clone(), vec![boiler]),
        profile("kids", format!("{policy}You speak with children."), Vec::new()),
    ]
}

/// The model's adapters: name and file.
const ADAPTERS: [(&str, &str); 2] = [("butler", "a file"), ("pirate", "another")];

/// The same assistants, of which the second speaks under the first adapter.
fn profiles_with_adapters() -> Vec<Profile> {
    let mut profiles = profiles();
    profiles[1].adapters = Some(AdapterSet::NONE.with(0, Scale::ONE));
    profiles
}

/// What happened to a world's requests.
#[derive(Debug, Default)]
struct Tally {
    n_answers: AtomicUsize,
    n_cancelled: AtomicUsize,
    /// Refused with 503 and sent again.
    n_busy: AtomicUsize,
    /// Refused with 400, too long.
    n_too_long: AtomicUsize,
    n_failed: AtomicUsize,
    n_evicted: AtomicUsize,
    n_prompt_tokens: AtomicUsize,
    n_cached_tokens: AtomicUsize,
    /// Answers of which something came back from below the cells.
    n_restored: AtomicUsize,
    /// Answers that another adapter set would have saved work.
    n_other_adapters: AtomicUsize,
    /// How often other adapters came into force.
    n_switches: AtomicUsize,
}

fn count(counter: &AtomicUsize, n: usize) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn counted(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}

impl World {
    /// Lets all clients talk, checks every answer and what is left behind.
    fn run(self) -> Tally {
        eprintln!("seed {}, {:?}, {} cells", self.seed, self.attention, self.context);
        let model = model(self.attention).adapters(self.setup().adapters.len());
        let faults = model.faults();
        let house = House::start(Arc::new(model), self.setup());
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for client in 0..self.n_clients {
                let (world, house, faults, tally) = (&self, &house, &faults, &tally);
                scope.spawn(move || Talker::new(world, client, house, faults, tally).talk());
            }
        });
        eprintln!("{tally:?}");
        self.check_rest(&house, &faults);
        count(&tally.n_switches, house.status().n_adapter_switches as usize);
        house.close();
        tally
    }

    fn setup(&self) -> Setup {
        Setup {
            context: self.context,
            parallel: self.parallel,
            queue: self.queue,
            profiles: self.profiles.clone(),
            cache: self.cache,
            adapters: if self.with_adapters { ADAPTERS.to_vec() } else { Vec::new() },
            ..Setup::default()
        }
    }

    /// Nothing is left behind: once a request as large as the context has evicted the rest, one leaf and the pins remain.
    fn check_rest(&self, house: &House, faults: &Faults) {
        self.check_count(house, faults);
        faults.fail_next_decodes(0);
        let large = "w".repeat(self.context - 1 - self.overhead());
        let messages = [Message::text(Role::User, large)];
        let body = json!({ "model": MODEL, "messages": wire(&messages), "max_tokens": 1, "temperature": 0 });
        let answer = Answer::of(&house.ask(&body));
        assert_eq!(answer.usage.n_prompt, self.context - 1);
        let prompt = plan(&mut self.planner(), MODEL, &messages);
        assert_eq!(answer.text, cold(self.attention, &prompt, 1, self.context).0);

        let status = house.await_rest();
        let n_ids_used = status.n_ids - status.n_ids_free;
        assert!(n_ids_used <= 1 + self.profiles.len(), "ids are lost: {status:?}");
        self.check_count(house, faults);
    }

    /// The engine has as many free cells as hob counts; where a copy leaves out what is never seen again, at least as many.
    fn check_count(&self, house: &House, faults: &Faults) {
        house.await_rest();
        house.await_status(|status| {
            let n_free = faults.n_free();
            let is_right = if self.attention == Attention::Full {
                n_free == status.cells.free
            } else {
                n_free >= status.cells.free
            };
            status.cells.held == 0 && is_right
        });
    }

    /// Tokens of a prompt beside the text of its one message.
    fn overhead(&self) -> usize {
        plan(&mut self.planner(), MODEL, &[Message::text(Role::User, "x")]).len() - 1
    }

    fn planner(&self) -> Planner {
        planner(&model(self.attention), self.profiles.clone())
    }
}

/// One client at work.
struct Talker<'a> {
    world: &'a World,
    house: &'a House,
    faults: &'a Faults,
    tally: &'a Tally,
    client: usize,
    rng: Rng,
    planner: Planner,
    n_said: usize,
}

impl<'a> Talker<'a> {
    fn new(world: &'a World, client: usize, house: &'a House, faults: &'a Faults, tally: &'a Tally) -> Talker<'a> {
        let rng = Rng::with_seed(world.seed.wrapping_mul(1000) + client as u64);
        Talker { world, house, faults, tally, client, rng, planner: world.planner(), n_said: 0 }
    }

    /// Two clients are one owner: they share what they say at the beginning, and only they may.
    fn salt(&self) -> String {
        format!("owner {}", self.client / 2)
    }

    fn talk(mut self) {
        let mut conversations = vec![Vec::new(); 3];
        for _ in 0..self.world.n_turns {
            let place = self.rng.usize(..conversations.len());
            let mut messages: Vec<Message> = std::mem::take(&mut conversations[place]);
            match self.rng.u8(..10) {
                0 => messages.clear(),
                // An earlier question is put differently, or the last one again.
                1 => messages.truncate(messages.len() / 4 * 2),
                2 => drop(messages.pop()),
                _ => {}
            }
            if messages.last().is_none_or(|last| last.role != Role::User) {
                messages.push(self.question(messages.is_empty()));
            }
            let model = self.model();
            let prompt = plan(&mut self.planner, &model, &messages);
            let (adapters, lora) = self.adapters(&model);
            if let Some(answer) = self.ask(&model, &messages, &prompt, adapters, lora) {
                messages.push(Message::text(Role::Assistant, answer));
                conversations[place] = messages;
            }
        }
    }

    fn question(&mut self, is_first: bool) -> Message {
        self.n_said += 1;
        let marker = format!("marker {}.{} ", self.client, self.n_said);
        let diary = if is_first { format!("{} keeps a diary. ", self.salt()).repeat(8) } else { String::new() };
        // What the owner's other client may be asking at the same time.
        if is_first && self.rng.bool() {
            return Message::text(Role::User, format!("{diary}What is for dinner?"));
        }
        let detail = "and so on ".repeat(self.rng.usize(..12));
        Message::text(Role::User, format!("{diary}{marker}{detail}?"))
    }

    fn model(&mut self) -> String {
        let names = self.world.profiles.iter().map(|profile| profile.name.as_str());
        let names: Vec<&str> = names.chain([MODEL]).collect();
        names[self.rng.usize(..names.len())].to_owned()
    }

    /// What the next answer is to be computed under, and how its request says so.
    fn adapters(&mut self, model: &str) -> (AdapterSet, Value) {
        let own = self.world.profiles.iter().find(|profile| profile.name == model).and_then(|profile| profile.adapters);
        let (one, half) = (Scale::ONE, Scale::new(0.5).unwrap());
        match self.rng.u8(..if self.world.with_adapters { 6 } else { 1 }) {
            0 | 1 => (own.unwrap_or_default(), Value::Null),
            2 => (AdapterSet::NONE, json!([])),
            3 => (AdapterSet::NONE.with(0, one), json!([{ "id": 0, "scale": 1.0 }, { "id": 1, "scale": 0.0 }])),
            4 => (AdapterSet::NONE.with(0, half), json!([{ "name": "butler", "scale": 0.5 }])),
            _ => {
                (AdapterSet::NONE.with(0, one).with(1, half), json!([{ "id": 1, "scale": 0.5 }, { "name": "butler" }]))
            }
        }
    }

    /// Asks until it is let in; `None` if there is no answer to go on from.
    fn ask(
        &mut self,
        model: &str,
        messages: &[Message],
        prompt: &[Token],
        adapters: AdapterSet,
        lora: Value,
    ) -> Option<String> {
        let World { cancels, failures, .. } = *self.world;
        let max_tokens = 1 + self.rng.usize(..60);
        let is_streamed = self.rng.bool();
        let body = json!({
            "model": model, "messages": wire(messages), "temperature": 0, "max_tokens": max_tokens,
            "cache_salt": self.salt(), "stream": is_streamed, "stream_options": { "include_usage": true }, "lora": lora,
        })
        .to_string();
        if failures > 0 && self.rng.usize(..failures) == 0 {
            self.faults.fail_next_decodes(1);
        }
        // Dropped after so many events; the head counts as one.
        let hangs_up = (cancels > 0 && self.rng.usize(..cancels) == 0).then(|| self.rng.usize(..8));
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "never let in: {:?}", self.house.status());
            let mut exchange = self.house.send(&body);
            if hangs_up == Some(0) || (hangs_up.is_some() && !is_streamed) {
                count(&self.tally.n_cancelled, 1);
                return None;
            }
            if !is_streamed {
                let reply = exchange.reply();
                match reply.head.status {
                    200 => return Some(self.check(&Answer::of(&reply), prompt, adapters, max_tokens)),
                    503 => self.check_busy(reply.head.header("retry-after")),
                    400 => return self.check_too_long(&reply.json(), prompt),
                    status => return self.check_failed(status, &reply.json()),
                }
                continue;
            }
            let head = exchange.head();
            match head.status {
                200 => {}
                503 => {
                    self.check_busy(head.header("retry-after"));
                    continue;
                }
                status => {
                    let error = serde_json::from_str(&exchange.body()).unwrap();
                    return match status {
                        400 => self.check_too_long(&error, prompt),
                        _ => self.check_failed(status, &error),
                    };
                }
            }
            assert_eq!(head.header("content-type"), Some("text/event-stream"));
            if head.header("x-hob-cache").is_some_and(|cache| cache.contains("cause=evicted")) {
                count(&self.tally.n_evicted, 1);
            }
            if head.header("x-hob-cache").is_some_and(|cache| cache.contains("cause=adapter")) {
                count(&self.tally.n_other_adapters, 1);
            }
            if head.header("x-hob-cache").is_some_and(|cache| !cache.contains("restored=0")) {
                count(&self.tally.n_restored, 1);
            }
            if let Some(n_events) = hangs_up {
                for _ in 1..n_events {
                    exchange.event();
                }
                count(&self.tally.n_cancelled, 1);
                return None;
            }
            return match Answer::read(&mut exchange) {
                Ok(answer) => Some(self.check(&answer, prompt, adapters, max_tokens)),
                Err(error) => self.check_failed(200, &error),
            };
        }
    }

    fn check(&self, answer: &Answer, prompt: &[Token], adapters: AdapterSet, max_tokens: usize) -> String {
        let World { attention, context, .. } = *self.world;
        let (text, finish, n_generated) = cold_under(adapters, attention, prompt, max_tokens, context);
        assert_eq!((&answer.text, &answer.finish), (&text, &finish), "a cold run says something else");
        let Usage { n_prompt, n_cached, n_generated: n_told } = answer.usage;
        assert_eq!((n_prompt, n_told), (prompt.len(), n_generated));
        assert!(n_cached < n_prompt, "one token is always computed");
        count(&self.tally.n_answers, 1);
        count(&self.tally.n_prompt_tokens, n_prompt);
        count(&self.tally.n_cached_tokens, n_cached);
        text
    }

    fn check_busy(&self, retry_after: Option<&str>) {
        let seconds: u64 = retry_after.expect("503 says when to come back").parse().unwrap();
        assert!(seconds >= 1);
        count(&self.tally.n_busy, 1);
        // A client would wait; here others use the time.
        std::thread::yield_now();
    }

    fn check_too_long(&self, body: &Value, prompt: &[Token]) -> Option<String> {
        let error = &body["error"];
        assert_eq!(error["code"], "context_length_exceeded", "{body}");
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(prompt.len()), &json!(self.world.context)));
        assert!(prompt.len() >= self.world.context);
        count(&self.tally.n_too_long, 1);
        None
    }

    fn check_failed(&self, status: u16, body: &Value) -> Option<String> {
        assert!(self.world.failures > 0, "{status}: {body}");
        assert!(matches!(status, 200 | 500), "{status}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains("simulated failure"), "{body}");
        count(&self.tally.n_failed, 1);
        None
    }
}

#[test]
fn cached_answers_equal_cold_ones_in_any_order_with_evictions_cancels_and_a_full_queue() {
    for seed in 0..3 {
        let tally = World { seed, ..World::default() }.run();
        for (what, counter) in [
            ("answered", &tally.n_answers),
            ("cancelled", &tally.n_cancelled),
            ("refused as too many", &tally.n_busy),
            ("found evicted", &tally.n_evicted),
        ] {
            assert!(counted(counter) > 0, "no request was {what}: {tally:?}");
        }
        assert!(5 * counted(&tally.n_cached_tokens) > counted(&tally.n_prompt_tokens), "hardly reused: {tally:?}");
    }
}

#[test]
fn answers_brought_back_from_ram_and_disk_equal_cold_ones() {
    // Bytes of a simulated token in RAM.
    const TOKEN: u64 = 28;
    for (seed, ram, disk) in [(11, 4_000, 0), (12, 2_000, 20_000), (13, 0, 20_000), (14, 100_000, 1_000_000)] {
        let cache = Lower { ram: ram * TOKEN, disk: disk * TOKEN };
        let tally = World { seed, context: 1200, cache, failures: 20, n_turns: 15, ..World::default() }.run();
        assert!(counted(&tally.n_restored) > 0, "nothing came back with {ram} and {disk}: {tally:?}");
    }
    for (seed, attention) in [(15, Attention::Window(40)), (16, Attention::Recurrent)] {
        let cache = Lower { ram: 1 << 20, disk: 1 << 20 };
        let tally = World { seed, attention, context: 2000, cache, n_turns: 15, ..World::default() }.run();
        assert!(counted(&tally.n_restored) > 0, "{attention:?}: {tally:?}");
    }
}

#[test]
fn answers_under_adapters_equal_cold_ones_under_the_same() {
    const TOKEN: u64 = 28;
    for (seed, attention, context, cache) in [
        (21, Attention::Full, 1400, Lower::default()),
        (22, Attention::Full, 1400, Lower { ram: 4_000 * TOKEN, disk: 20_000 * TOKEN }),
        (23, Attention::Window(40), 2400, Lower { ram: 1 << 20, disk: 1 << 20 }),
        (24, Attention::Recurrent, 2400, Lower { ram: 1 << 20, disk: 1 << 20 }),
    ] {
        let profiles = profiles_with_adapters();
        let world =
            World { seed, attention, context, cache, profiles, with_adapters: true, failures: 20, ..World::default() };
        let tally = world.run();
        assert!(counted(&tally.n_cached_tokens) > 0, "nothing was reused: {tally:?}");
        assert!(counted(&tally.n_switches) > 0, "all was computed under one set: {tally:?}");
        assert!(counted(&tally.n_other_adapters) > 0, "no cause was another set: {tally:?}");
    }
}

#[test]
fn opaque_memories_never_share_what_they_cannot_cut() {
    for attention in [Attention::Window(40), Attention::Window(200), Attention::Recurrent] {
        // Nothing is shared here, so the same load needs more cells.
        let tally = World { attention, context: 2400, ..World::default() }.run();
        assert!(counted(&tally.n_cached_tokens) > 0, "{tally:?}");
    }
}

#[test]
fn a_failed_step_harms_nobody_but_those_in_it() {
    for attention in [Attention::Full, Attention::Window(40), Attention::Recurrent] {
        let tally = World { attention, context: 2000, failures: 6, seed: 7, ..World::default() }.run();
        assert!(counted(&tally.n_failed) > 0, "{tally:?}");
        assert!(counted(&tally.n_answers) > counted(&tally.n_failed), "{tally:?}");
    }
}

#[test]
fn two_hundred_conversations_share_room_for_three() {
    const N_TURNS: usize = 3;
    // A conversation ends with about 600 tokens, 430 of them the profile's.
    // As many bytes below, and those on disk that came back.
    let cache = Lower { ram: 3 * 600 * 28, disk: 100 * 600 * 28 };
    let setup = Setup { context: 1200, queue: 8, profiles: profiles(), cache, ..Setup::default() };
    let (context, faults) = (setup.context, model(Attention::Full));
    let house = House::start(Arc::new(faults.clone()), setup);
    house.await_warm();
    let n_pinned = house.status().pins[0].n_tokens;
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let house = &house;
            scope.spawn(move || {
                let mut planner = planner(&model(Attention::Full), profiles());
                let mut conversations = vec![Vec::new(); 50];
                for turn in 0..N_TURNS {
                    for (number, messages) in conversations.iter_mut().enumerate() {
                        let marker = format!("marker {worker}.{number}.{turn}");
                        messages.push(Message::text(Role::User, marker));
                        let body = json!({
                            "model": "house", "messages": wire(messages), "temperature": 0, "max_tokens": 24,
                            "cache_salt": format!("{worker}.{number}"),
                        });
                        let answer = Answer::of(&house.ask(&body));
                        let prompt = plan(&mut planner, "house", messages);
                        let (text, finish, n_generated) = cold(Attention::Full, &prompt, 24, context);
                        assert_eq!((&answer.text, &answer.finish), (&text, &finish));
                        let Usage { n_prompt, n_cached, n_generated: n_told } = answer.usage;
                        assert_eq!((n_prompt, n_told), (prompt.len(), n_generated));
                        assert!(n_cached >= n_pinned, "the pin is shared by all: {n_cached} of {n_pinned}");
                        messages.push(Message::text(Role::Assistant, text));
                    }
                }
            });
        }
    });
    let status = house.await_rest();
    assert_eq!(faults.faults().n_free(), status.cells.free);
    house.close();
}

#[test]
fn a_salt_parts_what_clients_left_and_pins_are_for_all() {
    let house = House::start(Arc::new(model(Attention::Full)), Setup { profiles: profiles(), ..Setup::default() });
    house.await_warm();
    let n_cached = |name: &str, salt: Option<&str>| {
        let messages = [Message::text(Role::User, "The safe's number is written behind the mirror. Is it safe there?")];
        let mut body = json!({ "model": name, "messages": wire(&messages), "temperature": 0, "max_tokens": 1 });
        body["cache_salt"] = salt.into();
        let usage = Answer::of(&house.ask(&body)).usage;
        (usage.n_cached, usage.n_prompt - 1)
    };
    for name in ["house", MODEL] {
        // What the model itself is asked has no more than its first token in common with a pin.
        let n_pinned = if name == MODEL { 1 } else { house.status().pins[0].n_tokens };
        for salt in [None, Some("alice"), Some("bob")] {
            assert_eq!(n_cached(name, salt).0, n_pinned, "{name}: what another left is not seen");
            let (again, all) = n_cached(name, salt);
            assert_eq!(again, all, "{name}: what one left oneself is");
        }
    }
    house.await_rest();
    house.close();
}

/// `make soak`: the same for many seeds and sizes.
#[test]
fn soak_cached_answers_equal_cold_ones() {
    for seed in 100..160 {
        let mut rng = Rng::with_seed(seed);
        let attention = match rng.u8(..5) {
            0 => Attention::Window(rng.usize(1..300)),
            1 => Attention::Recurrent,
            _ => Attention::Full,
        };
        World {
            seed,
            attention,
            context: rng.usize(1300..3500),
            parallel: rng.usize(1..6),
            queue: rng.usize(1..8),
            profiles: if rng.bool() { profiles() } else { Vec::new() },
            n_clients: rng.usize(3..9),
            n_turns: 60,
            cancels: rng.usize(..6),
            failures: rng.usize(..12),
            cache: Lower { ram: rng.u64(..4) * 28 * rng.u64(..3_000), disk: rng.u64(..3) * 28 * rng.u64(..30_000) },
            with_adapters: rng.bool(),
        }
        .run();
    }
}
