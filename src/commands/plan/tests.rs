//! Plans of a small house over the simulated engine, whose every number can be counted by hand.

use std::sync::Arc;

use crate::engine::simulated::{Attention, ByteVocab, ChatMl, Dated, SimulatedModel};
use crate::prompt::Document;
use crate::telemetry::Store;

use super::*;

const GIB: u64 = 1 << 30;

fn house(context: usize) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let text = format!(
        "telemetry.path = \"t\"\nmodel.name = \"simulated\"\nmodel.context = {context}\ncache.ram = \"512MiB\""
    );
    std::fs::write(&file, text).unwrap();
    let mut config = Config::load(&file).unwrap();
    config.file = "config.toml".into();
    config.model.path = "/models/simulated.gguf".into();
    config
}

fn profile(name: &str) -> Profile {
    Profile {
        name: name.to_owned(),
        system: "You are the house.\n".to_owned(),
        tools: vec![r#"{"type":"function","function":{"name":"light"}}"#.to_owned()],
        documents: vec![
            Document { title: "handbook".to_owned(), text: "The key is under the mat.".to_owned() },
            Document { title: "calendar".to_owned(), text: "Paper bin: Tuesday.".to_owned() },
        ],
        ..Profile::default()
    }
}

fn plan(config: &Config, profiles: &[&str], machine_bytes: u64) -> Plan {
    let profiles = profiles.iter().map(|name| profile(name)).collect();
    Plan::of(config, profiles, &SimulatedModel::new(), machine_bytes).unwrap()
}

fn printed(plan: &Plan, format: Format) -> String {
    let mut out = Vec::new();
    plan.write(format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_plan_can_be_read_by_people() {
    let plan = plan(&house(4000), &["house"], GIB);
    assert_eq!(plan.exit_code(), 0);
    insta::assert_snapshot!(printed(&plan, Format::Plain), @r"
    model   simulated (/models/simulated.gguf)
            simulated: 1 layers with K/V, 1 KV heads each, head size 4, trained for 1,048,576 tokens
            Share and cut anywhere: conversations stand on a common beginning without a copy of it.

    prompt  system text, tools | documents as a first exchange | history | live values, question   (|: a conversation can be cut off here)

    K/V     2 × 1 layers × 1 KV heads × head size 4 × 2 bytes (f16) = 16 bytes a token
            × 4,096 tokens (model.context) = 65,536 bytes = 64.0 KiB

    profile house: 311 tokens, 4.9 KiB, computed once and kept
              policy             fixed          ~18  288 bytes  system text
              tools              fixed          ~47  752 bytes  by the template  cut at 77
              document handbook  document       ~25  400 bytes  first exchange
              document calendar  document       ~19  304 bytes  first exchange   cut at 311
              around them                      ~202

    pins    311 of 4,096 tokens are the profiles' for good (4.9 KiB)
            3,785 stay for conversations; 512 must

    memory  weights                        0 bytes
            K/V                           64.0 KiB
            to compute a step             ~2.3 MiB
            logits of all sequences     ~126.5 KiB
            K/V beside it (cache.ram)    512.0 MiB
            together                    ~514.5 MiB  of 1.0 GiB in this machine

    It fits.
    ");
}

#[test]
fn a_plan_can_be_read_by_programs() {
    insta::assert_snapshot!(printed(&plan(&house(4000), &["house"], GIB), Format::Json), @r#"
    {
      "fits": true,
      "model": {
        "name": "simulated",
        "path": "/models/simulated.gguf",
        "architecture": "simulated",
        "n_layers": 1,
        "n_kv_heads": 1,
        "n_kv_heads_all": 1,
        "k_head_size": 4,
        "v_head_size": 4,
        "n_vocab": 259,
        "n_context_train": 1048576,
        "memory": "rewindable",
        "shares": true,
        "adapters": []
      },
      "template": {
        "places": [
          {
            "what": "system text",
            "closes": false
          },
          {
            "what": "tools",
            "closes": true
          },
          {
            "what": "documents as a first exchange",
            "closes": true
          },
          {
            "what": "history",
            "closes": true
          },
          {
            "what": "live values, question",
            "closes": false
          }
        ],
        "prints_date": false,
        "prints_time": false,
        "freezes_date": false
      },
      "kv": {
        "type": "f16",
        "number_bytes": [
          2,
          1
        ],
        "bytes_per_token": 16,
        "n_cells": 4096,
        "bytes": 65536
      },
      "profiles": [
        {
          "name": "house",
          "n_tokens": 311,
          "kv_bytes": 4976,
          "sections": [
            {
              "name": "policy",
              "class": "fixed",
              "n_tokens": 18,
              "kv_bytes": 288,
              "lands": "system_text",
              "cut": null
            },
            {
              "name": "tools",
              "class": "fixed",
              "n_tokens": 47,
              "kv_bytes": 752,
              "lands": "template",
              "cut": 77
            },
            {
              "name": "document handbook",
              "class": "document",
              "n_tokens": 25,
              "kv_bytes": 400,
              "lands": "first_exchange",
              "cut": null
            },
            {
              "name": "document calendar",
              "class": "document",
              "n_tokens": 19,
              "kv_bytes": 304,
              "lands": "first_exchange",
              "cut": 311
            }
          ],
          "n_tokens_around": 202,
          "live": []
        }
      ],
      "pins": {
        "n_tokens": 311,
        "kv_bytes": 4976,
        "n_left": 3785,
        "n_left_min": 512
      },
      "memory": {
        "weights": 0,
        "adapters": 0,
        "kv": 65536,
        "compute": 2432560,
        "output": 129500,
        "cache_ram": 536870912,
        "total": 539498508,
        "machine": 1073741824
      },
      "misfits": [],
      "warnings": []
    }
    "#);
}

#[test]
fn pins_that_do_not_fit_are_told_with_what_would_do() {
    let plan = plan(&house(512), &["house"], GIB);
    assert_eq!(plan.exit_code(), 78);
    insta::assert_snapshot!(plan.misfits[0].fault, @"config.toml: model.context = 512: the profiles need 311 tokens and 512 must stay for requests: 311 tokens too few, which are 4.9 KiB of K/V; model.context = 1024 would do, or shorter profiles");
    // What it names does fit, and nothing smaller.
    let [remedy] = &plan.misfits[0].remedies[..] else { panic!("{:?}", plan.misfits) };
    let context: usize = remedy.strip_prefix("model.context = ").unwrap().parse().unwrap();
    assert!(self::plan(&house(context), &["house"], GIB).fits);
    assert!(!self::plan(&house(context - CELLS_STEP), &["house"], GIB).fits);
}

#[test]
fn memory_that_is_not_there_is_told_with_what_would_do() {
    let config = house(1 << 19);
    let memory = plan(&config, &["house"], GIB).memory;
    let needed = memory.total - memory.cache_ram;
    // With half of the K/V's bytes missing, quantised K/V or a shorter context fit.
    let machine_bytes = needed - memory.kv / 2 + memory.kv / 16;
    let plan = plan(&config, &["house"], machine_bytes);
    let [misfit] = &plan.misfits[..] else { panic!("{:?}", plan.misfits) };
    assert_eq!(misfit.missing_bytes, needed - machine_bytes);
    assert_eq!(misfit.remedies[0], "model.kv_type = \"q8_0\"");
    let context: usize = misfit.remedies[1].strip_prefix("model.context = ").unwrap().parse().unwrap();
    let fits = |context| self::plan(&house(context), &["house"], machine_bytes).fits;
    assert!(fits(context) && !fits(context + CELLS_STEP));

    let nothing = self::plan(&config, &["house"], 0);
    assert!(nothing.misfits[0].remedies.is_empty());
    assert!(nothing.misfits[0].fault.problem.ends_with("take a smaller model, or one with fewer bits per weight"));
}

#[test]
fn what_is_kept_in_ram_beside_the_context_is_counted_and_gives_way() {
    let config = house(4096);
    let of = |machine_bytes| plan(&config, &["house"], machine_bytes);
    let roomy = of(GIB);
    let memory = &roomy.memory;
    assert_eq!(memory.cache_ram, 512 << 20);
    assert_eq!(memory.total, memory.weights + memory.kv + memory.compute + memory.output + memory.cache_ram);
    assert_eq!(roomy.warnings, []);
    // 2.5 MiB are needed, and 256 stay free.
    let tight = of(300 << 20);
    assert_eq!((tight.fits, tight.memory.cache_ram), (true, 41 << 20));
    insta::assert_snapshot!(tight.warnings[0], @r#"config.toml: cache.ram = "512MiB": is more than is left beside model and context: 41.0 MiB are used; make it smaller or give hob more memory"#);
    assert_eq!(of(100 << 20).memory.cache_ram, 0);
}

#[test]
fn profiles_that_the_disk_does_not_hold_are_warned_of() {
    let mut config = house(4096);
    config.cache.disk = 4 << 10;
    let plan = plan(&config, &["house"], GIB);
    assert!(plan.fits);
    insta::assert_snapshot!(plan.warnings[0], @r#"config.toml: cache.disk = "4KiB": the profiles need 4.9 KiB: files that they have already stay, others are not written, and their profiles are computed at each start"#);
}

#[test]
fn what_profiles_share_is_counted_once_where_it_can_be_shared() {
    let config = house(4096);
    let [alone, both] = [&["house"][..], &["house", "twin"]].map(|names| plan(&config, names, GIB).pins.n_tokens);
    assert_eq!(alone, both);
    let windowed = SimulatedModel::new().attention(Attention::Window(64));
    let copies = Plan::of(&config, vec![profile("house"), profile("twin")], &windowed, GIB).unwrap();
    assert_eq!((copies.pins.n_tokens, copies.model.shares), (2 * alone, false));
    assert!(printed(&copies, Format::Plain).contains("Whole sequences only"));
}

#[test]
fn a_context_beyond_the_trained_one_is_warned() {
    let mut config = house(4096);
    assert_eq!(plan(&config, &[], GIB).warnings, []);
    config.model.context = (1 << 20) + 1;
    insta::assert_snapshot!(plan(&config, &[], GIB).warnings[0], @"config.toml: model.context = 1048577: the model was trained for 1,048,576 tokens: answers in longer conversations go wrong");
}

#[test]
fn a_profile_that_is_not_kept_is_said() {
    let empty = Profile { system: String::new(), tools: Vec::new(), documents: Vec::new(), ..profile("empty") };
    let plan = Plan::of(&house(4096), vec![empty], &SimulatedModel::new(), GIB).unwrap();
    assert_eq!((plan.profiles[0].n_tokens, plan.pins.n_tokens), (None, 0));
    insta::assert_snapshot!(plan.warnings[0], @r#"config.toml: profile[0] = "empty": is not kept warm: it is empty, or this template ends it with no control token"#);
}

#[test]
fn models_whose_layers_differ_have_their_own_formula() {
    let model = plan(&house(4096), &[], GIB);
    let (part, kv) = (model.model, model.kv);
    let mixed = ModelPart { n_layers: 3, n_kv_heads: None, n_kv_heads_all: 7, v_head_size: 2, ..part };
    let kv = KvPart { kv_type: "q8_0", number_bytes: (34, 32), ..kv };
    insta::assert_snapshot!(table::formula(&mixed, &kv), @"7 KV heads in 3 layers × (4 numbers of K + 2 of V) × 34/32 bytes (q8_0) = 16 bytes a token");
}

#[test]
fn the_order_of_documents_is_shown_with_its_reason_and_what_stands_before_questions() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = house(4096);
    config.telemetry.path = folder.path().join("hob.sqlite");
    let month = 30 * 24 * 3600;
    let start = |now: i64, handbook: &str| {
        let mut profiles = [profile("house")];
        profiles[0].documents[0].text = handbook.to_owned();
        let history = documents::order(&config.telemetry.path, &mut profiles, &Moment::utc(now));
        let store = Store::open(&config.telemetry.path, 1, std::time::Duration::from_secs(1));
        store.unwrap().keep_documents(&history.rows).unwrap();
    };
    let now = Moment::now().unix_s;
    start(now - 2 * month, "The key is under the pot.");
    start(now - month, "The key is under the mat.");
    config.profiles =
        vec![config::ProfileFiles { name: "house".to_owned(), has_clock: true, ..config::ProfileFiles::default() }];
    let text = printed(&plan(&config, &["house"], GIB), Format::Plain);
    let lines = |start: &str, end: &str| {
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with(start) && line.ends_with(end));
        lines.count()
    };
    let place = |title: &str| text.find(&format!("document {title}")).unwrap();
    assert!(place("calendar") < place("handbook"), "{text}");
    assert_eq!(lines("document calendar", "0.0 changes a month"), 1, "{text}");
    assert_eq!(lines("document handbook", "0.3 changes a month"), 1, "{text}");
    assert_eq!(lines("live", "before each question: the time"), 1, "{text}");
}

#[test]
fn a_template_that_prints_the_date_is_told_of() {
    let template = Dated(ChatMl { takes_tools: true });
    let model = SimulatedModel::with(Arc::new(ByteVocab::new()), Arc::new(template));
    let mut config = house(4096);
    let told = |config: &Config| {
        let plan = Plan::of(config, vec![profile("house")], &model, GIB).unwrap();
        let text = printed(&plan, Format::Plain);
        text.lines().find(|line| line.contains("prints the date")).map(|line| line.trim().to_owned())
    };
    insta::assert_snapshot!(told(&config).unwrap(), @"The chat template prints the date: profiles are computed anew at midnight.");
    config.layout.mode = LayoutMode::Optimise;
    insta::assert_snapshot!(told(&config).unwrap(), @"The chat template prints the date: it keeps the day on which profiles were computed, and the true one stands before each question.");
}

#[test]
fn a_stored_request_is_planned_with_its_clock_and_can_be_read() {
    let mut config = house(4000);
    config.layout.mode = crate::request::LayoutMode::Safe;
    config.state_folder = "/nowhere".into();
    let body = serde_json::json!({
        "model": "simulated",
        "messages": [
            { "role": "system", "content": "The time is 20:06 on Monday.\nYou are the voice of this house." },
            { "role": "user", "content": "Is the oven on?" },
        ],
        "tools": [{ "type": "function", "function": { "name": "light" } }],
    });
    let plan = RequestPlan::of(&config, vec![profile("house")], &SimulatedModel::new(), body.to_string().as_bytes());
    let plan = plan.unwrap();
    // When it is planned stands in the live block.
    let told = |format| {
        let mut out = Vec::new();
        plan.write(format, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let start = text.find("[As of").unwrap();
        let end = start + text[start..].find(']').unwrap();
        format!("{}[As of NOW{}", &text[..start], &text[end..])
    };
    // Weekdays and zones have names of different lengths.
    let live = plan.parts.iter().find(|part| part.section == "live").unwrap().n_tokens;
    let plain = told(Format::Plain).replace(&format!("{live}      user [As"), "M      user [As");
    insta::assert_snapshot!(plain.replace(&plan.n_tokens.to_string(), "N"), @r#"
    request simulated: N of 4,000 tokens
            client system  session       40      system You are the voice of this house.
            tools          fixed         51 cut  {"type":"function","function":{"name":"light"}}
            live           live          M      user [As of NOW] The time is 20:06 on Monday.
            question       turn          28      Is the oven on? assistant
    layout  safe, history new
            clock, 28 bytes, from messages[0], byte 0, to messages[1]: The time is 20:06 on Monday.
    "#);
    assert_eq!(plan.parts.iter().map(|part| part.n_tokens).sum::<usize>(), plan.n_tokens);
    let json: serde_json::Value = serde_json::from_str(&told(Format::Json)).unwrap();
    insta::assert_snapshot!(json["moved"], @r#"[{"kind":"clock","n_bytes":28,"from_message":0,"from_byte":0,"to_message":1,"text":"The time is 20:06 on Monday."}]"#);

    let refused = RequestPlan::of(&config, vec![], &SimulatedModel::new(), b"{}").unwrap_err();
    assert_eq!(refused.to_string(), "model: is required");
    let unknown = body.to_string().replace("simulated", "gpt");
    let refused = RequestPlan::of(&config, vec![], &SimulatedModel::new(), unknown.as_bytes()).unwrap_err();
    assert_eq!(refused.to_string(), "model `gpt` is not here; there are: simulated");
}

#[test]
fn adapters_are_named_and_their_weights_counted() {
    let mut config = house(4000);
    let adapter = |name: &str, is_default| config::Adapter {
        name: name.to_owned(),
        path: format!("/models/{name}.gguf").into(),
        scale: crate::request::Scale::ONE,
        is_default,
    };
    config.model.adapters = vec![adapter("butler", false), adapter("pirate", true)];
    let plan = Plan::of(&config, vec![profile("house")], &SimulatedModel::new().adapters(2), GIB).unwrap();
    let text = printed(&plan, Format::Plain);
    assert!(text.contains("adapter 0: butler, scale 1.0\n"), "{text}");
    assert!(text.contains("adapter 1: pirate, scale 1.0, unless a request or profile names others\n"), "{text}");
    // Two thousand bytes each, as the simulated engine has it.
    assert_eq!(plan.memory.adapters, 4_000);
    assert!(text.contains("adapters                       3.9 KiB\n"), "{text}");
    let memory = &plan.memory;
    let parts = memory.weights + memory.adapters + memory.kv + memory.compute + memory.output + memory.cache_ram;
    assert_eq!(memory.total, parts);
}
