//! A plan as people read it.
//!
//! Each *part* is a bold word with lines beside it. Numbers that are estimates have a ~ in front.

use std::fmt::Write as _;

use super::{KvPart, Lands, MemoryPart, ModelPart, PinsPart, Plan, ProfilePart, SectionPart, TemplatePart};
use crate::commands::format::{Format, bytes, grouped};

pub(super) fn table(plan: &Plan, format: Format) -> String {
    let mut parts =
        vec![("model", model(&plan.model)), ("prompt", template(&plan.template)), ("K/V", kv(&plan.model, &plan.kv))];
    parts.extend(plan.profiles.iter().map(|profile| ("profile", profile_lines(profile))));
    if plan.profiles.iter().any(|profile| profile.sections.iter().any(|part| part.lands == Lands::Fallback)) {
        let lines = [
            "The model's chat template has no place for tools, so hob writes them into the system text.",
            "Such a model was hardly trained to call tools: do not expect much of them.",
        ];
        parts.push(("tools", lines.map(str::to_owned).to_vec()));
    }
    parts.push(("pins", pins(&plan.pins, &plan.kv)));
    parts.push(("memory", memory(&plan.memory)));

    let mut text = String::new();
    for (head, lines) in parts {
        for (index, line) in lines.iter().enumerate() {
            // Padded before it is painted: a colour has no width.
            let head = format.bold(format_args!("{:<8}", if index == 0 { head } else { "" }));
            text.push_str(format!("{head}{line}").trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    for warning in &plan.warnings {
        let _ = writeln!(text, "{} {warning}", format.bold("warning:"));
    }
    for misfit in &plan.misfits {
        let _ = writeln!(text, "{} {}", format.red("does not fit:"), misfit.fault);
    }
    if plan.fits {
        let _ = writeln!(text, "{}", format.green("It fits."));
    }
    text
}

fn model(model: &ModelPart) -> Vec<String> {
    let class = match model.memory {
        "rewindable" => "Share and cut anywhere: conversations stand on a common beginning without a copy of it.",
        "guarded" => {
            "Share and cut anywhere: conversations stand on a common beginning without a copy of it. Windowed layers keep all \
             cells for that, and each sequence needs a second id."
        }
        "checkpointed" => {
            "Whole sequences only: the state goes forward alone, so a conversation is reused where it ends or, with cache.ram, \
             from before one of its last two answers, and each one copies its profile."
        }
        _ => {
            "Whole sequences only: a conversation is reused if it goes on, and each one copies its profile. This architecture \
             is not proved to share."
        }
    };
    let mut lines = vec![
        format!("{} ({})", model.name, model.path.display()),
        format!(
            "{}: {} layers with K/V, {} KV heads{}, head size {}, trained for {} tokens",
            model.architecture,
            model.n_layers,
            model.n_kv_heads.unwrap_or(model.n_kv_heads_all),
            if model.n_kv_heads.is_some() { " each" } else { " in all" },
            head_size(model),
            grouped(model.n_context_train)
        ),
        class.to_owned(),
    ];
    lines.extend(model.adapters.iter().enumerate().map(|(number, adapter)| {
        let default = if adapter.default { ", unless a request or profile names others" } else { "" };
        format!("adapter {number}: {}, scale {:?}{default}", adapter.name, adapter.scale)
    }));
    lines
}

/// Where things stand, and what is done about a date.
fn template(template: &TemplatePart) -> Vec<String> {
    let mut order = String::new();
    for (index, place) in template.places.iter().enumerate() {
        order += place.what;
        match (index + 1 == template.places.len(), place.closes) {
            (true, _) => {}
            (false, true) => order += " | ",
            (false, false) => order += ", ",
        }
    }
    let mut lines = vec![format!("{order}   (|: a conversation can be cut off here)")];
    if template.freezes_date {
        lines.push(
            "The chat template prints the date: it keeps the day on which profiles were computed, and the true one stands \
             before each question."
                .to_owned(),
        );
    } else if template.prints_date {
        lines.push("The chat template prints the date: profiles are computed anew at midnight.".to_owned());
    }
    lines
}

fn head_size(model: &ModelPart) -> String {
    match model.k_head_size == model.v_head_size {
        true => model.k_head_size.to_string(),
        false => format!("{} for K and {} for V", model.k_head_size, model.v_head_size),
    }
}

fn kv(model: &ModelPart, kv: &KvPart) -> Vec<String> {
    let [n_cells, n_bytes] = [kv.n_cells as u64, kv.bytes].map(grouped);
    vec![formula(model, kv), format!("× {n_cells} tokens (model.context) = {n_bytes} bytes = {}", bytes(kv.bytes))]
}

/// What one token costs, in the formula's usual form where the model allows it.
pub(super) fn formula(model: &ModelPart, kv: &KvPart) -> String {
    let number = match kv.number_bytes {
        (n_bytes, 1) => format!("{n_bytes} bytes"),
        (n_bytes, numbers) => format!("{n_bytes}/{numbers} bytes"),
    };
    let heads = match model.n_kv_heads {
        Some(n_kv_heads) => format!("{} layers × {n_kv_heads} KV heads", model.n_layers),
        None => format!("{} KV heads in {} layers", model.n_kv_heads_all, model.n_layers),
    };
    let product = match model.k_head_size == model.v_head_size {
        true => format!("2 × {heads} × head size {}", model.k_head_size),
        false => format!("{heads} × ({} numbers of K + {} of V)", model.k_head_size, model.v_head_size),
    };
    format!("{product} × {number} ({}) = {} bytes a token", kv.kv_type, grouped(kv.bytes_per_token))
}

fn profile_lines(profile: &ProfilePart) -> Vec<String> {
    let Some(n_tokens) = profile.n_tokens else { return vec![format!("{}: not kept warm", profile.name)] };
    let n_tokens = grouped(n_tokens as u64);
    let mut lines =
        vec![format!("{}: {n_tokens} tokens, {}, computed once and kept", profile.name, bytes(profile.kv_bytes))];
    let width = profile.sections.iter().map(|section| section.name.chars().count()).max().unwrap_or(0).max(12);
    lines.extend(profile.sections.iter().map(|section| section_line(section, width)));
    lines.push(format!("  {:<width$}  {:<8}  {:>8}", "around them", "", approximately(profile.n_tokens_around)));
    if !profile.live.is_empty() {
        lines.push(format!("  {:<width$}  {:<8}  before each question: {}", "live", "live", profile.live.join(", ")));
    }
    lines
}

fn section_line(section: &SectionPart, width: usize) -> String {
    let lands = match section.lands {
        Lands::SystemText => "system text",
        Lands::FirstExchange => "first exchange",
        Lands::Template => "by the template",
        Lands::Fallback => "by the fallback",
    };
    let cut = section.cut.map(|cut| format!("cut at {}", grouped(cut as u64))).unwrap_or_default();
    let changes = section.changes_per_month.map(|changes| format!("{changes:.1} changes a month")).unwrap_or_default();
    format!(
        "  {:<width$}  {:<8}  {:>8}  {:>9}  {lands:<15}  {cut:<13}  {changes}",
        section.name,
        section.class,
        approximately(section.n_tokens),
        bytes(section.kv_bytes),
    )
}

fn approximately(number: usize) -> String {
    format!("~{}", grouped(number as u64))
}

fn pins(pins: &PinsPart, kv: &KvPart) -> Vec<String> {
    let [n_tokens, n_cells, n_left, n_left_min] =
        [pins.n_tokens, kv.n_cells, pins.n_left, pins.n_left_min].map(|number| grouped(number as u64));
    vec![
        format!("{n_tokens} of {n_cells} tokens are the profiles' for good ({})", bytes(pins.kv_bytes)),
        format!("{n_left} stay for conversations; {n_left_min} must"),
    ]
}

fn memory(memory: &MemoryPart) -> Vec<String> {
    let MemoryPart { weights, adapters, kv, compute, output, cache_ram, total, machine } = *memory;
    let line = |what: &str, approximate: &str, n_bytes: u64| {
        format!("{what:<26} {:>11}", format!("{approximate}{}", bytes(n_bytes)))
    };
    let mut lines = vec![line("weights", "", weights)];
    lines.extend((adapters > 0).then(|| line("adapters", "", adapters)));
    lines.extend([
        line("K/V", "", kv),
        line("to compute a step", "~", compute),
        line("logits of all sequences", "~", output),
        line("K/V beside it (cache.ram)", "", cache_ram),
        format!("{}  of {} in this machine", line("together", "~", total), bytes(machine)),
    ]);
    lines
}
