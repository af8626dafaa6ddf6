//! Plans of a small house over the simulated engine, whose every number can be counted by hand.

use crate::engine::simulated::{Attention, SimulatedModel};
use crate::prompt::Document;

use super::*;

const GIB: u64 = 1 << 30;

fn house(context: usize) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, format!("telemetry.path = \"t\"\nmodel.name = \"simulated\"\nmodel.context = {context}"))
        .unwrap();
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
        max_tokens: None,
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
    insta::assert_snapshot!(printed(&plan, Format::Plain), @"");
}

#[test]
fn a_plan_can_be_read_by_programs() {
    insta::assert_snapshot!(printed(&plan(&house(4000), &["house"], GIB), Format::Json), @"");
}

#[test]
fn pins_that_do_not_fit_are_told_with_what_would_do() {
    let plan = plan(&house(512), &["house"], GIB);
    assert_eq!(plan.exit_code(), 78);
    insta::assert_snapshot!(plan.misfits[0].fault, @"");
    // What it names does fit, and nothing smaller.
    let [remedy] = &plan.misfits[0].remedies[..] else { panic!("{:?}", plan.misfits) };
    let context: usize = remedy.strip_prefix("model.context = ").unwrap().parse().unwrap();
    assert!(self::plan(&house(context), &["house"], GIB).fits);
    assert!(!self::plan(&house(context - CELLS_STEP), &["house"], GIB).fits);
}

#[test]
fn memory_that_is_not_there_is_told_with_what_would_do() {
    let config = house(1 << 19);
    let needed = plan(&config, &["house"], GIB).memory;
    // With half of the K/V's bytes missing, quantised K/V or a shorter context fit.
    let machine_bytes = needed.total - needed.kv / 2 + needed.kv / 16;
    let plan = plan(&config, &["house"], machine_bytes);
    let [misfit] = &plan.misfits[..] else { panic!("{:?}", plan.misfits) };
    assert_eq!(misfit.missing_bytes, needed.total - machine_bytes);
    assert_eq!(misfit.remedies[0], "model.kv_type = \"q8_0\"");
    let context: usize = misfit.remedies[1].strip_prefix("model.context = ").unwrap().parse().unwrap();
    let fits = |context| self::plan(&house(context), &["house"], machine_bytes).fits;
    assert!(fits(context) && !fits(context + CELLS_STEP));

    let nothing = self::plan(&config, &["house"], 0);
    assert!(nothing.misfits[0].remedies.is_empty());
    assert!(nothing.misfits[0].fault.problem.ends_with("take a smaller model, or one with fewer bits per weight"));
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
    insta::assert_snapshot!(plan(&config, &[], GIB).warnings[0], @"");
}

#[test]
fn a_profile_that_is_not_kept_is_said() {
    let empty = Profile { system: String::new(), tools: Vec::new(), documents: Vec::new(), ..profile("empty") };
    let plan = Plan::of(&house(4096), vec![empty], &SimulatedModel::new(), GIB).unwrap();
    assert_eq!((plan.profiles[0].n_tokens, plan.pins.n_tokens), (None, 0));
    insta::assert_snapshot!(plan.warnings[0], @"");
}

#[test]
fn models_whose_layers_differ_have_their_own_formula() {
    let model = plan(&house(4096), &[], GIB);
    let (part, kv) = (model.model, model.kv);
    let mixed = ModelPart { n_layers: 3, n_kv_heads: None, n_kv_heads_all: 7, v_head_size: 2, ..part };
    let kv = KvPart { kv_type: "q8_0", number_bytes: (34, 32), ..kv };
    insta::assert_snapshot!(table::formula(&mixed, &kv), @"");
}
