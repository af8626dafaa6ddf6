//! CPU outside the engine: from a body's bytes to the tokens of its prompt that are held.
//!
//! A *stage* is one part of that way: parse, plan, render, tokenise, match. Each is measured on bodies that end in something
//! new, as a conversation does; what stands before was seen once. Sockets and the scheduler are not in it: the warm TTFT is.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::report::Goal;
use super::{BenchError, bodies, lookup, median};
use crate::engine::{Model, SeqId};
use crate::http::parse_chat;
use crate::prompt::{Moment, Planner, Profile, PromptError};

/// Requests of each kind, after one that is not counted.
const N_RUNS: usize = 25;

/// The goal of planning: from bytes to matched tokens, for 5,000 tokens seen before and for what follows in a tool loop.
const HOUSEHOLD_MS_MAX: f64 = 15.0;
const CONTINUATION_MS_MAX: f64 = 5.0;

/// Milliseconds of each stage; medians, so that `all` is not exactly their sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outside {
    /// "first time", "seen before, new at its end", "tool-loop continuation".
    pub what: &'static str,
    #[serde(rename = "tokens")]
    pub n_tokens: usize,
    #[serde(rename = "tools")]
    pub n_tools: usize,
    #[serde(rename = "bytes")]
    pub n_bytes: usize,
    pub parse_ms: f64,
    pub plan_ms: f64,
    pub render_ms: f64,
    pub tokenise_ms: f64,
    pub match_ms: f64,
    pub all_ms: f64,
    pub goal: Option<Goal>,
}

/// One request's stages.
#[derive(Clone, Copy, Default)]
struct Stages {
    parse: Duration,
    plan: Duration,
    render: Duration,
    tokenise: Duration,
    find: Duration,
}

/// Measures `body`, or the built-in household: the first time, with something new at its end, and as a tool loop goes on.
///
/// `model_name`: what a body is planned for that names neither it nor one of `profiles`. Only the built-in household has goals.
pub(super) fn measure<M: Model>(
    model: &M,
    model_name: &str,
    profiles: &[Profile],
    body: Option<&[u8]>,
) -> Result<Vec<Outside>, BenchError> {
    let (base, has_goals) = match body {
        // Parsed as a request first, so that a body which is none is refused in the words of the route.
        Some(bytes) => {
            parse_chat(bytes, CLIENT)?;
            (serde_json::from_slice(bytes)?, false)
        }
        None => (bodies::household(model_name), true),
    };
    let planner = || Planner::new(model.vocab(), model.template(), model_name.to_owned(), profiles.to_vec());
    let mut bench = Bench { planner: planner()?, model_name, has_goals };

    let first = bench.measure("first time", std::slice::from_ref(&base), None)?;
    let renewed: Vec<Value> = (0..=N_RUNS).map(|n| bodies::renewed(&base, n)).collect();
    let again = bench.measure("seen before, new at its end", &renewed, Some(HOUSEHOLD_MS_MAX))?;
    let continued: Vec<Value> = renewed.iter().enumerate().map(|(n, body)| bodies::continued(body, n)).collect();
    let continuation = bench.measure("tool-loop continuation", &continued, Some(CONTINUATION_MS_MAX))?;
    Ok(vec![first, again, continuation])
}

const CLIENT: &str = "bench";

struct Bench<'a> {
    planner: Planner,
    model_name: &'a str,
    has_goals: bool,
}

impl Bench<'_> {
    /// Runs all `bodies` and counts all but the first, or the one there is.
    fn measure(&mut self, what: &'static str, bodies: &[Value], goal_ms: Option<f64>) -> Result<Outside, BenchError> {
        // Prompts are looked for in a tree that holds much else, where each stands on its predecessor.
        let (mut tree, _) = lookup::full_tree();
        let mut runs = Vec::with_capacity(bodies.len());
        let (mut n_tokens, mut n_tools, mut n_bytes) = (0, 0, 0);
        for (body, id) in bodies.iter().zip(1_000..) {
            let bytes = serde_json::to_vec(body)?;
            let started = Instant::now();
            let mut request = parse_chat(&bytes, CLIENT)?;
            let parse = started.elapsed();
            let planned = match self.planner.plan(&request, &Moment::now()) {
                Err(PromptError::UnknownModel { .. }) => {
                    request.model = self.model_name.to_owned();
                    self.planner.plan(&request, &Moment::now())?
                }
                planned => planned?,
            };
            let (holder, tokens) = (request.client.owner().into(), planned.prompt.tokens);
            let looked = Instant::now();
            std::hint::black_box(tree.find(holder, &tokens));
            let find = looked.elapsed();
            lookup::hold(&mut tree, holder, &tokens, SeqId(id));
            let timings = planned.timings;
            runs.push(Stages { parse, plan: timings.plan, render: timings.render, tokenise: timings.tokenise, find });
            (n_tokens, n_tools, n_bytes) = (tokens.len(), request.tools.len(), bytes.len());
        }
        let counted = if runs.len() > 1 { &runs[1..] } else { &runs };
        let stage = |of: fn(&Stages) -> Duration| median(counted.iter().map(of).collect()).as_secs_f64() * 1_000.0;
        let all_ms = stage(Stages::all);
        Ok(Outside {
            what,
            n_tokens,
            n_tools,
            n_bytes,
            parse_ms: stage(|stages| stages.parse),
            plan_ms: stage(|stages| stages.plan),
            render_ms: stage(|stages| stages.render),
            tokenise_ms: stage(|stages| stages.tokenise),
            match_ms: stage(|stages| stages.find),
            all_ms,
            goal: goal_ms.filter(|_| self.has_goals).map(|max| Goal::at_most(max, all_ms)),
        })
    }
}

impl Stages {
    fn all(&self) -> Duration {
        self.parse + self.plan + self.render + self.tokenise + self.find
    }
}
