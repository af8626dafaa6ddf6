//! Defines `House`: a scheduler with a recorded real model, and the ways to ask it.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::{Gpu, GpuLayers, KvType, Model, Special, Threads};
use hob::request::{AdapterSet, Done, Event, Owner, Priority, Sampling, Token, TokenPrompt};
use hob::scheduler::{self, Budgets, Lower, Options, Pin, SchedulerHandle, Speculation, Status, Submission};
use hob::telemetry::Record;
use tokio::sync::mpsc;

use super::recording::{Log, Recording};
use crate::models;

pub(super) const ALICE: Owner = Owner::Private([1; 32]);
pub(super) const BOB: Owner = Owner::Private([2; 32]);

pub(super) fn load(path: &Path, template: Option<&str>) -> Arc<LoadedModel> {
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    Arc::new(LoadedModel::load(path, weights, template, |_| {}).unwrap())
}

/// The demo model, loaded once for all tests of this process.
pub(super) fn smollm2() -> &'static Arc<LoadedModel> {
    static MODEL: OnceLock<Arc<LoadedModel>> = OnceLock::new();
    MODEL.get_or_init(|| load(&models::smollm2(), None))
}

/// `n_tokens` of a text that does not repeat itself; texts of different `name` differ from their first token on.
pub(super) fn text(model: &LoadedModel, name: &str, n_tokens: usize) -> Vec<Token> {
    let sentence = |n: usize| format!("{name} room {n} is {} degrees warm and its lamp is off. ", (n * 7 + 3) % 31);
    let text: String = (0..n_tokens).map(sentence).collect();
    model.vocab().tokenize(&text, Special::Text)[..n_tokens].to_vec()
}

/// Sections one after the other, with a cut at the end of each but the last.
pub(super) fn prompt(sections: &[&[Token]]) -> TokenPrompt {
    let ends = sections.iter().scan(0, |end, section| {
        *end += section.len();
        Some(*end)
    });
    let mut cuts: Vec<usize> = ends.collect();
    cuts.pop();
    TokenPrompt { tokens: sections.concat(), cuts }
}

pub(super) struct Setup {
    pub(super) n_cells: usize,
    pub(super) parallel: usize,
    pub(super) kv_type: KvType,
    pub(super) pins: Vec<Pin>,
    pub(super) speculation: Speculation,
    /// Bytes for what leaves the cells.
    pub(super) ram: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            n_cells: 2048,
            parallel: 4,
            kv_type: KvType::F16,
            pins: Vec::new(),
            speculation: Speculation::Off,
            ram: 0,
        }
    }
}

pub(super) struct House {
    handle: SchedulerHandle,
    pub(super) log: Log,
    vocab: Arc<dyn hob::engine::Vocab>,
    n_submitted: std::cell::Cell<usize>,
    adapters: std::cell::Cell<AdapterSet>,
    thread: Option<JoinHandle<()>>,
}

impl House {
    pub(super) fn of(model: &Arc<LoadedModel>, setup: Setup) -> House {
        let (recording, log) = Recording::of(model);
        let ended = log.clone();
        let options = Options {
            n_cells: setup.n_cells,
            parallel: setup.parallel,
            queue: 64,
            kv_type: setup.kv_type,
            // One thread: the order of sums is then the same on every machine.
            threads: Threads::same(1),
            pins: setup.pins,
            open_lower: Box::new(move |_, _| Lower {
                budgets: Budgets { ram: setup.ram, ..Budgets::default() },
                ..Lower::default()
            }),
            speculation: setup.speculation,
            record: Box::new(move |record| {
                if matches!(record, Record::Request(_)) {
                    ended.mark_ended();
                }
            }),
        };
        let (handle, thread) = scheduler::start(Arc::new(recording), options).unwrap();
        House {
            handle,
            log,
            vocab: model.vocab(),
            n_submitted: Default::default(),
            adapters: Default::default(),
            thread: Some(thread),
        }
    }

    /// What is submitted from now on is computed under `adapters`.
    pub(super) fn set_adapters(&self, adapters: AdapterSet) {
        self.adapters.set(adapters);
    }

    /// Most likely tokens; an answer ends by its number of tokens alone.
    pub(super) fn submit(&self, owner: Owner, prompt: &TokenPrompt, max_tokens: usize) -> mpsc::Receiver<Event> {
        self.submit_sampled(owner, prompt, max_tokens, Sampling { temperature: 0.0, ..Sampling::default() })
    }

    /// The same with other tokens than the most likely ones.
    pub(super) fn submit_sampled(
        &self,
        owner: Owner,
        prompt: &TokenPrompt,
        max_tokens: usize,
        sampling: Sampling,
    ) -> mpsc::Receiver<Event> {
        let ends = (0..self.vocab.n_tokens() as i32).map(Token).filter(|&token| self.vocab.is_end(token));
        let sampling = Sampling { logit_bias: ends.map(|token| (token, -100.0)).collect(), ..sampling };
        let (events, receiver) = mpsc::channel(4096);
        let submission = Submission {
            prompt: prompt.clone(),
            sampling,
            rules: Arc::default(),
            n_logprobs: None,
            max_tokens: Some(max_tokens),
            stop: vec![],
            owner,
            adapters: self.adapters.get(),
            priority: Priority::default(),
            received: Instant::now(),
            label: Default::default(),
            events,
        };
        self.handle.submit(submission).unwrap();
        self.n_submitted.set(self.n_submitted.get() + 1);
        receiver
    }

    pub(super) fn ask(&self, owner: Owner, prompt: &TokenPrompt, max_tokens: usize) -> Answer {
        answer(self.submit(owner, prompt, max_tokens))
    }

    /// Lets `n` more steps pass and waits until the next one stands before the gate, or all requests have ended.
    pub(super) fn step(&self, n: usize) {
        self.log.gate(n);
        self.log.await_gate(self.n_submitted.get());
    }

    pub(super) fn status(&self) -> Status {
        self.handle.status()
    }

    pub(super) fn await_status(&self, what: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if what(&status) {
                return status;
            }
            assert!(begun.elapsed().as_secs() < 120, "never came: {status:?}");
            std::thread::yield_now();
        }
    }

    pub(super) fn await_warm(&self) -> Status {
        self.await_status(|status| status.pins.iter().all(|pin| pin.is_warm))
    }

    /// Waits until all requests have ended and proves that what the cache counts is what the engine was left with.
    pub(super) fn rest(&self) -> Status {
        self.log.await_ended(self.n_submitted.get());
        let is_idle = |status: &Status| status.n_running == 0 && status.n_waiting == 0 && status.n_ids_running == 0;
        let status = self.await_status(is_idle);
        assert_eq!((status.cells.held, status.cells.reserved), (0, 0), "nothing is left behind");
        assert_eq!(status.cells.total - status.cells.free, self.log.n_cells(), "cells the cache believes taken");
        assert_eq!(self.log.n_refused(), 0, "the count never promised a cell that was not there");
        status
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.log.open_gate();
        self.handle.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the scheduler's thread panicked");
        }
    }
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) done: Done,
}

impl Answer {
    pub(super) fn n_cached(&self) -> usize {
        self.done.cache.n_cached
    }
}

pub(super) fn answer(mut events: mpsc::Receiver<Event>) -> Answer {
    let mut text = String::new();
    loop {
        match events.blocking_recv().expect("an answer ends with Done") {
            Event::Admitted(_) | Event::Logprobs(_) => {}
            Event::Text(more) => text += &more,
            Event::Done(done) => return Answer { text, done },
            Event::Failed(error) => panic!("{error}"),
        }
    }
}
