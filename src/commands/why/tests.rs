//! `hob why` over a database that was written by hand.

use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::telemetry::{
    GainRecord, Label, PlanRecord, Record, RegionRecord, RequestRecord, SectionRecord, Store, inbox,
};

/// A house that observes: a clock and a rule in front of its tools cost 1,488 tokens in the second request.
fn house() -> (TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "telemetry.path = \"hob.sqlite\"\nserver.listen = [\"unix:hob.sock\"]").unwrap();
    let config = Config::load(&file).unwrap();
    let store = Store::open(&config.telemetry.path, 90, Duration::from_secs(60)).unwrap();
    let (handle, inbox) = inbox();
    handle.record(Record::Request(request("r1", 0, "cold")));
    handle.record(Record::Request(request("r2", 12, "diverged")));
    handle.stop();
    store.run(inbox);
    (folder, config)
}

fn request(id: &str, n_reused_cells: usize, cause: &'static str) -> RequestRecord {
    let section = |name: &str, class, n_bytes, cut| SectionRecord { name: name.into(), class, n_bytes, cut };
    let moved = |kind, n_bytes, byte| MovedRecord {
        kind,
        n_bytes,
        hash: "5f0c1e2d3b4a".into(),
        message: 0,
        byte,
        to_message: None,
    };
    let plan = PlanRecord {
        layout: "observe".into(),
        history: "untouched".into(),
        sections: vec![
            section("client system", "session".into(), 3_100, None),
            section("tools", "fixed".into(), 2_400, Some(1_500)),
            section("question", "turn".into(), 40, None),
        ],
        regions: [(0, 800), (1, 1_500), (2, 1_530)].map(|(section, end)| RegionRecord { section, end }).into(),
        moved: vec![moved("clock".into(), 28, 0), moved("item".into(), 1_204, 90)],
        gain: (cause != "cold").then_some(GainRecord { from: 12, to: Some(1_380) }),
        tools: "as_first_seen".into(),
    };
    RequestRecord {
        label: Label {
            id: id.to_owned(),
            client: "127.0.0.1".to_owned(),
            profile: None,
            dialect: "openai",
            plan: Some(Arc::new(plan)),
        },
        n_prompt: 1_530,
        n_reused_cells,
        n_reused_ram: 0,
        n_reused_disk: 0,
        n_computed: 1_530 - n_reused_cells,
        n_generated: 41,
        n_drafted: 0,
        n_accepted: 0,
        queue: Duration::ZERO,
        ttft: Some(Duration::from_millis(6_100)),
        prefill: Duration::from_millis(6_072),
        decode: Duration::from_secs(2),
        finish: "stop",
        cause,
        miss_at: n_reused_cells,
    }
}

fn printed(config: &Config, id: &str, format: Format) -> String {
    let mut out = Vec::new();
    why(config, id, format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_slow_answer_is_explained_with_its_remedy() {
    let (_folder, config) = house();
    insta::assert_snapshot!(printed(&config, "last", Format::Plain).replace("1 s ago", "0 s ago"), @r#"
    request   r2
              0 s ago, from 127.0.0.1 (openai): stop
    tokens    12 of 1,530 reused, the first token after 6.1 s
              1,518 computed in 6.1 s
    cause     diverged: something in front of the conversation differs from what is held
    where     the first computed token is number 12, 12 tokens into client system
    lost      1,488 tokens in front of the newest turn, 6.0 s
    layout    observe, tools as_first_seen: moving would have saved 1,368 tokens
              clock, 28 bytes (5f0c1e2d3b4a), from messages[0], byte 0, would move
              item, 1,204 bytes (5f0c1e2d3b4a), from messages[0], byte 90, would move
    sections  client system  session      800 tokens    3,100 bytes
              tools          fixed        700 tokens    2,400 bytes  cut at 1,500
              question       turn          30 tokens       40 bytes
    remedy    layout.mode = "safe"   # would have saved 1,368 tokens
    "#);
    let coloured = printed(&config, "last", Format::Coloured).replace("1 s ago", "0 s ago");
    let plain = printed(&config, "r2", Format::Plain).replace("1 s ago", "0 s ago");
    assert_eq!(coloured.replace("\x1b[1m", "").replace("\x1b[0m", ""), plain);
}

#[test]
fn a_request_is_found_by_its_id_in_either_form() {
    let (_folder, config) = house();
    let first: serde_json::Value = serde_json::from_str(&printed(&config, "r1", Format::Json)).unwrap();
    assert_eq!((&first["id"], &first["cause"]), (&"r1".into(), &"cold".into()));
    let other: serde_json::Value = serde_json::from_str(&printed(&config, "chatcmpl-r1", Format::Json)).unwrap();
    assert_eq!(first, other);
    let error = why(&config, "r3", Format::Plain, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "no request r3 is remembered; its id is what x-request-id says");
}

#[test]
fn a_house_without_requests_is_told_so() {
    let (_folder, config) = house();
    std::fs::remove_file(&config.telemetry.path).unwrap();
    let error = |config| why(config, "last", Format::Plain, &mut Vec::new()).unwrap_err().to_string();
    assert!(error(&config).starts_with("no telemetry database at "));
    drop(Store::open(&config.telemetry.path, 90, Duration::from_secs(60)).unwrap());
    assert_eq!(error(&config), "no request is remembered yet");
}

#[test]
fn each_cause_has_its_words() {
    let kept = ["restore_failed", "restore_slower", "too_large", "model", "kv_type", "adapter", "settings"];
    let others = ["appended", "live_block", "cold", "evicted", "diverged", "trimmed", "layout", "checkpoint"];
    for cause in others.into_iter().chain(kept) {
        assert_ne!(meaning(cause), meaning(""), "{cause}");
    }
}

#[test]
fn an_age_has_one_unit() {
    let ages = [0, 59, 60, 3_599, 3_600, 90_000].map(|seconds| age(Duration::from_secs(seconds)));
    assert_eq!(ages, ["0 s", "59 s", "1 min", "59 min", "1 h", "1 d"]);
}
