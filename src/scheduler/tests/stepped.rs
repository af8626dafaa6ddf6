//! A scheduler that takes its turns when it is told to, so that a test can say what happens between two steps and count them.

use std::sync::Mutex;

use super::*;
use crate::engine::Engine;
use crate::engine::simulated::SimulatedEngine;
use crate::scheduler::sequence::Running;

/// A scheduler that takes its turns when it is told to.
pub(super) struct Stepped {
    pub(super) scheduler: step::Scheduler<SimulatedEngine>,
    pub(super) faults: Faults,
    pub(super) records: Arc<Mutex<Vec<Record>>>,
}

/// A request in the making, as its client sees it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) asked: Asked,
    pub(super) events: Option<mpsc::Receiver<Event>>,
    pub(super) said: String,
    pub(super) end: Option<Done>,
    pub(super) has_failed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) owner: Owner,
    pub(super) adapters: AdapterSet,
    pub(super) priority: Priority,
    pub(super) prompt: String,
    pub(super) max_tokens: usize,
    pub(super) seed: Option<u32>,
    pub(super) stop: Vec<String>,
    /// Events that it lets wait.
    pub(super) capacity: usize,
}

impl Asked {
    pub(super) fn new(prompt: &str, max_tokens: usize) -> Asked {
        let (owner, prompt) = (ALICE, prompt.to_owned());
        let priority = Priority::default();
        let adapters = AdapterSet::NONE;
        Asked { owner, adapters, priority, prompt, max_tokens, seed: None, stop: vec![], capacity: 64 }
    }
}

impl Stepped {
    /// What `setup` records is kept in `records`.
    pub(super) fn start(setup: Setup) -> Stepped {
        let mut model = SimulatedModel::new().attention(setup.attention).adapters(1);
        if let Some((period, odds)) = setup.repeats {
            model = model.repeating(period, odds);
        }
        let faults = model.faults();
        let records: Arc<Mutex<Vec<Record>>> = Arc::default();
        let kept = records.clone();
        let options = Options {
            n_cells: setup.n_cells,
            parallel: setup.parallel,
            queue: setup.queue,
            kv_type: KvType::F16,
            threads: Threads::same(1),
            pins: setup.pins,
            record: Box::new(move |record| kept.lock().unwrap().push(record)),
            open_lower: setup.lower,
            speculation: setup.speculation,
        };
        let (status, _) = watch::channel(Status::default());
        let scheduler = open(&model, options, status, Arc::default(), Box::new(|_| {})).unwrap();
        Stepped { scheduler, faults, records }
    }

    pub(super) fn submit(&mut self, asked: Asked) -> Client {
        let (events, receiver) = mpsc::channel(asked.capacity);
        let temperature = if asked.seed.is_some() { 0.7 } else { 0.0 };
        self.scheduler.n_waiting.fetch_add(1, Ordering::Relaxed);
        self.scheduler.take(Command::Submit(vec![Submission {
            prompt: TokenPrompt { tokens: tokens(&asked.prompt), cuts: vec![] },
            sampling: Sampling { temperature, seed: asked.seed, ..Sampling::default() },
            rules: Arc::default(),
            n_logprobs: None,
            max_tokens: Some(asked.max_tokens),
            stop: asked.stop.clone(),
            owner: asked.owner,
            adapters: asked.adapters,
            priority: asked.priority,
            received: Instant::now(),
            label: Default::default(),
            events,
        }]));
        Client { asked, events: Some(receiver), said: String::new(), end: None, has_failed: false }
    }

    /// One turn; then what is counted must be what the engine holds.
    pub(super) fn turn(&mut self) {
        self.scheduler.turn();
        self.check();
    }

    pub(super) fn check(&self) {
        let step::Scheduler { engine, cache, running, .. } = &self.scheduler;
        cache.check();
        assert_eq!(cache.cells().free, engine.n_free(), "the cells' count is the engine's");
        for Running { sequence, standing } in running {
            let n_past = standing.n_past();
            assert_eq!(engine.held(standing.seq).map_or(0, |held| held.end), n_past, "no draft outlives its step");
            let is_answering = sequence.tokens.len() > sequence.n_prompt;
            assert!(!is_answering || n_past < sequence.tokens.len(), "the newest token is still to be computed");
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let step::Scheduler { running, waiting, .. } = &self.scheduler;
        running.is_empty() && waiting.is_empty()
    }

    /// Turns until all are answered; the number of turns.
    pub(super) fn finish(&mut self, clients: &mut [Client]) -> usize {
        let mut n_turns = 0;
        while !self.is_idle() {
            self.turn();
            clients.iter_mut().for_each(Client::read);
            n_turns += 1;
            assert!(n_turns < 100_000, "answers end");
        }
        n_turns
    }

    pub(super) fn ask(&mut self, asked: Asked) -> Client {
        let mut clients = [self.submit(asked)];
        self.finish(&mut clients);
        let [client] = clients;
        client
    }
}

impl Client {
    pub(super) fn read(&mut self) {
        let Some(events) = &mut self.events else { return };
        while let Ok(event) = events.try_recv() {
            assert!(self.end.is_none() && !self.has_failed, "nothing comes behind the end");
            match event {
                Event::Admitted(_) => assert_eq!(self.said, ""),
                Event::Text(text) => self.said += &text,
                Event::Logprobs(_) => panic!("nobody asked for them"),
                Event::Done(done) => self.end = Some(done),
                Event::Failed(_) => self.has_failed = true,
            }
        }
    }

    /// Text, tokens and end.
    pub(super) fn answer(&self) -> (String, Vec<Token>, usize, Finish) {
        let done = self.end.as_ref().expect("it was answered");
        (self.said.clone(), done.generated.clone(), done.n_generated, done.finish)
    }
}
