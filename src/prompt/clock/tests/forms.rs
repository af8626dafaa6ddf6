//! Every supported form at any time in any zone, and random lines that are no clock.

use proptest::prelude::*;

use super::super::calendar::{self, OFFSETS_MIN};
use super::super::{Volatile, kind, looks_like_clock, parts};
use super::NOW;

const WEEKDAYS: [[&str; 7]; 7] = [
    ["Monday", "Montag", "poniedziałek", "luni", "понедельник", "lunes", "lundi"],
    ["Tuesday", "Dienstag", "wtorek", "marți", "вторник", "martes", "mardi"],
    ["Wednesday", "Mittwoch", "środa", "miercuri", "среда", "miércoles", "mercredi"],
    ["Thursday", "Donnerstag", "czwartek", "joi", "четверг", "jueves", "jeudi"],
    ["Friday", "Freitag", "piątek", "vineri", "пятница", "viernes", "vendredi"],
    ["Saturday", "Samstag", "sobota", "sâmbătă", "суббота", "sábado", "samedi"],
    ["Sunday", "Sonntag", "niedziela", "duminică", "воскресенье", "domingo", "dimanche"],
];

const MONTHS: [[&str; 7]; 12] = [
    ["January", "Januar", "stycznia", "ianuarie", "января", "enero", "janvier"],
    ["February", "Februar", "lutego", "februarie", "февраля", "febrero", "février"],
    ["March", "März", "marca", "martie", "марта", "marzo", "mars"],
    ["April", "April", "kwietnia", "aprilie", "апреля", "abril", "avril"],
    ["May", "Mai", "maja", "mai", "мая", "mayo", "mai"],
    ["June", "Juni", "czerwca", "iunie", "июня", "junio", "juin"],
    ["July", "Juli", "lipca", "iulie", "июля", "julio", "juillet"],
    ["August", "August", "sierpnia", "august", "августа", "agosto", "août"],
    ["September", "September", "września", "septembrie", "сентября", "septiembre", "septembre"],
    ["October", "Oktober", "października", "octombrie", "октября", "octubre", "octobre"],
    ["November", "November", "listopada", "noiembrie", "ноября", "noviembre", "novembre"],
    ["December", "Dezember", "grudnia", "decembrie", "декабря", "diciembre", "décembre"],
];

/// (year, month, day) of a day since 1970, by counting.
fn civil(day: i64) -> (i64, i64, i64) {
    let year = (1970..).find(|year| calendar::day(year + 1, 1, 1) > Some(day)).unwrap_or(1970);
    let month = (1..=12).rev().find(|month| calendar::day(year, *month, 1) <= Some(day)).unwrap_or(1);
    (year, month, day - calendar::day(year, month, 1).unwrap_or(0) + 1)
}

/// Every form that is supported, telling `now` as a wall clock `minutes` east of UTC would.
fn forms(now: i64, minutes: i64) -> Vec<String> {
    let local = now + minutes * 60;
    let (y, mo, d) = civil(local.div_euclid(86_400));
    let second_of_day = local.rem_euclid(86_400);
    let (h, mi, s) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let weekday = WEEKDAYS[usize::from(calendar::weekday_of(local.div_euclid(86_400)))];
    let month = MONTHS[mo as usize - 1];
    let (h12, half) = (if h % 12 == 0 { 12 } else { h % 12 }, if h < 12 { "AM" } else { "PM" });
    let (sign, zone_h, zone_mi) = (if minutes < 0 { '-' } else { '+' }, minutes.abs() / 60, minutes.abs() % 60);
    let (short_day, short_month) = (&weekday[0][..3], &month[0][..3]);
    let [en_day, de_day, pl_day, ro_day, ru_day, es_day, fr_day] = weekday;
    let [en, de, pl, ro, ru, es, fr] = month;
    let mut forms = vec![
        format!("Current time is {h:02}:{mi:02}:{s:02}. Today's date is {y}-{mo:02}-{d:02}."),
        format!("Current time: {h:02}:{mi:02}"),
        format!("Time: {h:02}:{mi:02}:{s:02}"),
        format!("{y}-{mo:02}-{d:02} {h:02}:{mi:02}:{s:02}"),
        format!("{y}/{mo:02}/{d:02} {h:02}:{mi:02}:{s:02}"),
        format!("Now: {y}-{mo:02}-{d:02}T{h:02}:{mi:02}:{s:02}.125{sign}{zone_h:02}:{zone_mi:02}"),
        format!("{y}{mo:02}{d:02}T{h:02}{mi:02}{s:02}"),
        format!("{short_day}, {d} {short_month} {y} {h:02}:{mi:02}:{s:02} {sign}{zone_h:02}{zone_mi:02}"),
        format!("{short_day} {short_month} {d:2} {h:02}:{mi:02}:{s:02} {y}"),
        format!("Current date and time: {en_day}, {en} {d}, {y} at {h12}:{mi:02}:{s:02} {half}"),
        format!("{mo}/{d}/{y}, {h12}:{mi:02}:{s:02} {half}"),
        format!("{d:02}/{mo:02}/{y} {h:02}:{mi:02}:{s:02}"),
        format!("{d:02}.{mo:02}.{y}, {h:02}:{mi:02}:{s:02}"),
        format!("{d}-{mo}-{y} {h}:{mi:02}:{s:02}"),
        format!("Today is {en_day}, {d} {en} {y}"),
        format!("It is {h12}:{mi:02} {half}."),
        format!("Timestamp: {now}"),
        format!("Unix time: {now}123"),
        format!("Es ist {de_day}, der {d}. {de} {y}, {h}:{mi:02} Uhr."),
        format!("Es ist {h}.{mi:02} Uhr."),
        format!("Heute ist {de_day}, der {d:02}.{mo:02}.{y}."),
        format!("Dzisiaj jest {pl_day}, {d} {pl} {y} r."),
        format!("Dziś jest {pl_day}, {d} {pl} {y} roku, godz. {h}:{mi:02}"),
        format!("Astăzi este {ro_day}, {d} {ro} {y}, ora {h}:{mi:02}."),
        format!("Сегодня {ru_day}, {d} {ru} {y} г."),
        format!("Текущие дата и время: {d} {ru} {y} г. в {h:02}:{mi:02}:{s:02}"),
        format!("Hoy es {es_day}, {d} de {es} de {y}."),
        format!("Fecha y hora actual: {es_day}, {d} de {es} de {y} a las {h}:{mi:02}"),
        format!("Nous sommes le {fr_day} {d} {fr} {y} et il est {h}h{mi:02}."),
        format!("Il est actuellement {h} h {mi:02}."),
    ];
    // Without a cue and seconds, a round minute is taken for an appointment.
    if mi % 5 != 0 {
        forms.push(format!("Time: {h:02}:{mi:02}"));
        forms.push(format!("{en_day}, {d} {en} {y}, {h:02}:{mi:02}"));
    }
    forms
}

const NAMES: [&str; 12] = [
    "Kitchen",
    "Anna",
    "boiler",
    "Wohnzimmer",
    "lampa",
    "frigider",
    "кухня",
    "salón",
    "cuisine",
    "the dog",
    "it rains",
    "bus",
];
const VERBS: [&str; 8] = ["is", "was serviced", "comes", "kommt um", "otwiera", "в", "cierra a las", "until"];
const TAILS: [&str; 6] = ["°C", "%", "in the hall", "Uhr Zahnarzt", "dla dzieci", "every day"];

proptest! {
    #[test]
    fn a_time_written_in_any_form_is_a_clock_in_every_zone(
        now in 1_000_000_000_i64..4_000_000_000, zone in 0..OFFSETS_MIN.len(), late in -59_i64..=119,
    ) {
        for line in forms(now, OFFSETS_MIN[zone]) {
            prop_assert_eq!(kind(&line, now), Some(Volatile::Clock), "{}", line);
            prop_assert_eq!(kind(&line, now + late), Some(Volatile::Clock), "{} {} s late", line, late);
            prop_assert!(looks_like_clock(&line), "{}", line);
        }
    }

    #[test]
    fn household_sentences_are_no_clock_even_at_their_own_time(
        now in 1_000_000_000_i64..4_000_000_000, zone in 0..OFFSETS_MIN.len(),
        name in 0..NAMES.len(), verb in 0..VERBS.len(), tail in 0..TAILS.len(), form in 0_usize..4,
    ) {
        let local = now + OFFSETS_MIN[zone] * 60;
        let (y, mo, d) = civil(local.div_euclid(86_400));
        let (h, mi) = (local.rem_euclid(86_400) / 3600, local.rem_euclid(3600) / 60);
        let value = [
            format!("{h}:{mi:02}"),
            format!("{d}.{mo}.{y}"),
            format!("{y}-{mo:02}-{d:02} {h:02}:{mi:02}"),
            format!("{h}.{mi:02}"),
        ];
        let (name, verb, tail) = (NAMES[name], VERBS[verb], TAILS[tail]);
        for line in [
            format!("{name} {verb} {} {tail}", value[form]),
            format!("- {name}: {} {tail}.", value[form]),
            format!("{} {name} {tail}", value[form]),
            format!("Note: {name} {verb} {} {tail}", value[form]),
            format!("last_changed: {}", value[form]),
        ] {
            prop_assert_eq!(kind(&line, now), None, "{}", line);
        }
    }

    #[test]
    fn any_text_is_read_without_panic_and_parts_are_in_order(text in any::<String>(), now in any::<i32>()) {
        let mut last = 0;
        for (range, _) in parts(&text, i64::from(now)) {
            prop_assert!(last <= range.start && range.start < range.end && range.end <= text.len());
            prop_assert!(text.is_char_boundary(range.start) && text.is_char_boundary(range.end));
            last = range.end;
        }
    }

    #[test]
    fn any_run_of_clock_words_is_read_without_panic(
        words in proptest::collection::vec(0_usize..40, 0..12), gaps in proptest::collection::vec(0_usize..8, 12),
    ) {
        const PIECES: [&str; 40] = [
            "Current time", "Today is", "is", "20", "06", "2026", "30", "11", ":", ".", "-", "/", "T", "Z", "+", "(", ")",
            "November", "ноября", "mar", "PM", "p.", "m.", "h", "Uhr", "UTC", "Europe/", "in", "é", "…", "\u{301}", "„", "«",
            "</", ">", "1796069170", "20261130T", "99999999999999999999", "10:00", "x-anthropic-a: b=c;",
        ];
        const GAPS: [&str; 8] = ["", "", " ", " ", ", ", ". ", "\u{202f}", "–"];
        let text: String = words.iter().zip(&gaps).flat_map(|(word, gap)| [PIECES[*word], GAPS[*gap]]).collect();
        for (range, _) in parts(&text, NOW) {
            prop_assert!(text.get(range).is_some());
        }
        looks_like_clock(&text);
    }
}
