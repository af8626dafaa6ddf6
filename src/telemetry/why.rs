//! Why a request computed what it computed: what its row says, made plain.
//!
//! An *account* is the answer of `hob why` and of `/hob/v1/requests`: where the first computed token stands, what that cost,
//! what the layout did, and the setting that would have helped. It is derived from one row alone; names in its JSON are stable.

use serde::Serialize;

use super::plan::{MovedRecord, PlanRecord};
use crate::config::write_size;

/// A row of `requests`.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRow {
    pub id: String,
    /// When it had ended, in milliseconds since 1970.
    pub at_ms: i64,
    pub client: String,
    pub profile: Option<String>,
    pub dialect: String,
    pub finish: String,
    pub n_prompt: usize,
    /// From any tier.
    pub n_reused: usize,
    pub n_computed: usize,
    pub n_generated: usize,
    pub queue_ms: f64,
    pub ttft_ms: Option<f64>,
    pub prefill_ms: f64,
    pub decode_ms: f64,
    pub cause: String,
    /// Index of the first computed token.
    pub miss_at: usize,
    /// `None`: written by a hob that kept none.
    pub plan: Option<PlanRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    pub id: String,
    pub at_ms: i64,
    pub client: String,
    pub profile: Option<String>,
    pub dialect: String,
    pub finish: String,
    pub tokens: Tokens,
    pub ms: Times,
    /// Why the first computed token was computed.
    pub cause: String,
    /// `None`: nothing was computed.
    pub first_computed: Option<FirstComputed>,
    pub lost: Lost,
    /// The setting that would have helped.
    pub remedy: Option<Remedy>,
    /// `None`: the row was written by a hob that kept no plans.
    pub plan: Option<Plan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tokens {
    pub prompt: usize,
    pub reused: usize,
    pub computed: usize,
    pub generated: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub queue: f64,
    /// `None`: there was no first token.
    pub ttft: Option<f64>,
    pub prefill: f64,
    pub decode: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FirstComputed {
    /// Its index in the prompt: the first token that differs from what was held.
    pub token: usize,
    pub section: Option<String>,
    pub class: Option<String>,
    /// Tokens of the section in front of it.
    pub section_offset: Option<usize>,
}

/// Computed although an earlier request had computed it: what stands in front of the newest turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lost {
    pub tokens: usize,
    /// Their share of the time until the end of the prompt; `None`: none was measured.
    pub seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// For the configuration.
    pub line: String,
    /// What it would have saved this request, where that is known.
    pub saves_tokens: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// "off", "observe", "safe", "optimise".
    pub layout: String,
    /// What the history was rendered from.
    pub history: String,
    /// How the tools stand, or would in `observe`.
    pub tools: String,
    /// Tokens reused that as sent would not have been.
    pub saved_tokens: usize,
    /// In `observe`: tokens that would have been.
    pub gain_tokens: Option<usize>,
    pub moved: Vec<MovedRecord>,
    pub sections: Vec<Section>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    pub name: String,
    pub class: String,
    pub bytes: usize,
    pub tokens: usize,
    pub cut: Option<usize>,
}

impl Account {
    /// What `row` says. `n_context_tokens` and `ram_bytes` (of `cache.ram`) as they are now.
    pub fn of(row: RequestRow, n_context_tokens: usize, ram_bytes: u64) -> Account {
        let lost = row.lost();
        let remedy = row.remedy(n_context_tokens, ram_bytes);
        let place = row.plan.as_ref().and_then(|plan| plan.place(row.miss_at));
        let first_computed = (row.n_computed > 0).then(|| FirstComputed {
            token: row.miss_at,
            section: place.map(|place| place.section.name.clone()),
            class: place.map(|place| place.section.class.to_string()),
            section_offset: place.map(|place| place.offset),
        });
        let plan = row.plan.as_ref().map(|plan| Plan::of(plan, row.n_reused));
        Account {
            tokens: Tokens {
                prompt: row.n_prompt,
                reused: row.n_reused,
                computed: row.n_computed,
                generated: row.n_generated,
            },
            ms: Times { queue: row.queue_ms, ttft: row.ttft_ms, prefill: row.prefill_ms, decode: row.decode_ms },
            id: row.id,
            at_ms: row.at_ms,
            client: row.client,
            profile: row.profile,
            dialect: row.dialect,
            finish: row.finish,
            cause: row.cause,
            first_computed,
            lost,
            remedy,
            plan,
        }
    }
}

impl Plan {
    fn of(plan: &PlanRecord, n_reused: usize) -> Plan {
        let n_gained = plan.n_gained(n_reused);
        let sections = plan.sections.iter().enumerate().map(|(section_idx, section)| Section {
            name: section.name.clone(),
            class: section.class.to_string(),
            bytes: section.n_bytes,
            tokens: plan.n_tokens(section_idx),
            cut: section.cut,
        });
        Plan {
            layout: plan.layout.to_string(),
            history: plan.history.to_string(),
            tools: plan.tools.to_string(),
            saved_tokens: if plan.is_observed() { 0 } else { n_gained },
            gain_tokens: plan.is_observed().then_some(n_gained),
            moved: plan.moved.clone(),
            sections: sections.collect(),
        }
    }
}

impl RequestRow {
    fn lost(&self) -> Lost {
        // What nobody has seen before is new, and so is what a conversation has just added.
        let is_new = matches!(self.cause.as_str(), "cold" | "appended" | "live_block");
        let end = self.plan.as_ref().filter(|_| !is_new).map_or(0, PlanRecord::question_start);
        let tokens = end.saturating_sub(self.miss_at).min(self.n_computed);
        let is_measured = self.n_computed > 0 && self.prefill_ms > 0.0;
        let ms = self.prefill_ms * tokens as f64 / self.n_computed.max(1) as f64;
        // To a millisecond.
        let seconds = is_measured.then(|| ms.round() / 1_000.0);
        Lost { tokens, seconds }
    }

    fn remedy(&self, n_context_tokens: usize, ram_bytes: u64) -> Option<Remedy> {
        let plan = self.plan.as_ref()?;
        let in_system = plan.place(self.miss_at).is_some_and(|place| place.section.name == "client system");
        match (self.cause.as_str(), &*plan.layout) {
            (_, "observe") => {
                let n_gained = plan.n_gained(self.n_reused);
                // What observes counts prose as moved.
                let has_prose = plan.moved.iter().any(|moved| ["prose", "heading"].contains(&&*moved.kind));
                let mode = if has_prose { "optimise" } else { "safe" };
                let line = format!("layout.mode = \"{mode}\"");
                (n_gained > 0).then_some(Remedy { line, saves_tokens: Some(n_gained) })
            }
            ("diverged", "off") if in_system => {
                Some(Remedy { line: "layout.mode = \"observe\"".to_owned(), saves_tokens: None })
            }
            // What is evicted has left the RAM, too, where there is some; a larger context would be the dearer way.
            ("evicted", _) => Some(Remedy {
                line: match ram_bytes {
                    0 => format!("model.context = {}", 2 * n_context_tokens),
                    _ => format!("cache.ram = \"{}\"", write_size(ram_bytes.saturating_mul(2))),
                },
                saves_tokens: Some(self.lost().tokens).filter(|n_tokens| *n_tokens > 0),
            }),
            // Without RAM there is no place for what such a model goes back to.
            ("checkpoint", _) if ram_bytes == 0 => {
                Some(Remedy { line: "cache.ram = \"1GiB\"".to_owned(), saves_tokens: None })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::GainRecord;
    use super::super::plan::tests::plan;
    use super::*;

    fn row() -> RequestRow {
        RequestRow {
            id: "r1".into(),
            at_ms: 1_000,
            client: "127.0.0.1".into(),
            profile: None,
            dialect: "openai".into(),
            finish: "stop".into(),
            n_prompt: 1_000,
            n_reused: 12,
            n_computed: 988,
            n_generated: 5,
            queue_ms: 1.0,
            ttft_ms: Some(2_000.0),
            prefill_ms: 1_976.0,
            decode_ms: 500.0,
            cause: "diverged".into(),
            miss_at: 12,
            plan: Some(plan()),
        }
    }

    #[test]
    fn an_account_keeps_its_names() {
        let json = serde_json::to_string_pretty(&Account::of(row(), 16_384, 0)).unwrap();
        insta::assert_snapshot!(json, @r#"
        {
          "id": "r1",
          "at_ms": 1000,
          "client": "127.0.0.1",
          "profile": null,
          "dialect": "openai",
          "finish": "stop",
          "tokens": {
            "prompt": 1000,
            "reused": 12,
            "computed": 988,
            "generated": 5
          },
          "ms": {
            "queue": 1.0,
            "ttft": 2000.0,
            "prefill": 1976.0,
            "decode": 500.0
          },
          "cause": "diverged",
          "first_computed": {
            "token": 12,
            "section": "client system",
            "class": "session",
            "section_offset": 12
          },
          "lost": {
            "tokens": 888,
            "seconds": 1.776
          },
          "remedy": null,
          "plan": {
            "layout": "safe",
            "history": "appended",
            "tools": "as_sent",
            "saved_tokens": 0,
            "gain_tokens": null,
            "moved": [
              {
                "kind": "clock",
                "n_bytes": 28,
                "hash": "5f0c1e2d3b4a",
                "message": 0,
                "byte": 0,
                "to_message": 3
              }
            ],
            "sections": [
              {
                "name": "client system",
                "class": "session",
                "bytes": 1200,
                "tokens": 300,
                "cut": null
              },
              {
                "name": "tools",
                "class": "fixed",
                "bytes": 2000,
                "tokens": 500,
                "cut": 800
              },
              {
                "name": "history",
                "class": "turn",
                "bytes": 90,
                "tokens": 70,
                "cut": null
              },
              {
                "name": "question",
                "class": "turn",
                "bytes": 60,
                "tokens": 70,
                "cut": null
              },
              {
                "name": "live",
                "class": "live",
                "bytes": 130,
                "tokens": 60,
                "cut": null
              }
            ]
          }
        }
        "#);
    }

    #[test]
    fn lost_is_what_stands_in_front_of_the_newest_turn() {
        let lost = |cause: &str, miss_at: usize| {
            RequestRow { cause: cause.into(), miss_at, n_computed: 1_000 - miss_at, ..row() }.lost().tokens
        };
        assert_eq!(lost("diverged", 12), 888);
        assert_eq!(lost("evicted", 850), 50);
        assert_eq!(lost("trimmed", 900), 0);
        assert_eq!(["cold", "appended", "live_block"].map(|cause| lost(cause, 12)), [0; 3]);
        let seconds = row().lost().seconds.unwrap();
        assert!((seconds - 1.776).abs() < 1e-9, "{seconds}");
        assert_eq!(RequestRow { prefill_ms: 0.0, ..row() }.lost().seconds, None);
        assert_eq!(RequestRow { plan: None, ..row() }.lost().tokens, 0);
    }

    #[test]
    fn the_remedy_is_a_line_for_the_configuration() {
        let remedy_with = |ram_bytes, cause: &str, layout: &'static str, kind: &'static str| {
            let mut plan =
                PlanRecord { layout: layout.into(), gain: Some(GainRecord { from: 12, to: Some(780) }), ..plan() };
            plan.moved[0].kind = kind.into();
            let row = RequestRow { cause: cause.into(), plan: Some(plan), ..row() };
            row.remedy(4_096, ram_bytes).map(|remedy| (remedy.line, remedy.saves_tokens))
        };
        let remedy = |cause: &str, layout, kind| remedy_with(0, cause, layout, kind);
        let line = |line: &str, n| Some((line.to_owned(), n));
        assert_eq!(remedy("diverged", "observe", "clock"), line("layout.mode = \"safe\"", Some(768)));
        assert_eq!(remedy("diverged", "observe", "prose"), line("layout.mode = \"optimise\"", Some(768)));
        assert_eq!(remedy("diverged", "off", "clock"), line("layout.mode = \"observe\"", None));
        assert_eq!(remedy("evicted", "off", "clock"), line("model.context = 8192", Some(888)));
        assert_eq!(remedy_with(1 << 30, "evicted", "off", "clock"), line("cache.ram = \"2GiB\"", Some(888)));
        assert_eq!(remedy("checkpoint", "off", "clock"), line("cache.ram = \"1GiB\"", None));
        assert_eq!(remedy_with(1 << 30, "checkpoint", "off", "clock"), None);
        assert_eq!(remedy("diverged", "safe", "clock"), None);
        assert_eq!(remedy("cold", "off", "clock"), None);
        let lines =
            [("diverged", "observe", 0), ("diverged", "off", 0), ("evicted", "off", 0), ("evicted", "off", 1 << 30)];
        for (cause, layout, ram_bytes) in lines.into_iter().chain([("checkpoint", "off", 0)]) {
            let (line, _) = remedy_with(ram_bytes, cause, layout, "clock").unwrap();
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("config.toml");
            std::fs::write(&file, &line).unwrap();
            crate::config::Config::load(&file).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
