BEGIN TRANSACTION;
CREATE TABLE plait_claims (
	"key" TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	expires DOUBLE NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE plait_records (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	"key" TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	config TEXT NOT NULL, 
	result TEXT NOT NULL, 
	about TEXT NOT NULL, 
	UNIQUE ("key")
);
INSERT INTO "plait_records" VALUES(1,'a9d97f17e011b1abedd0041b2de0f191','search','{"iterations":1,"memory":0,"method":"random","objectives":[{"maximise":true,"objective":"decoder_params"},{"maximise":false,"objective":"flops"}],"protocol":1,"seed":0,"seq":256,"settings":{"at_once":65536,"samples":4},"space":{"alike":false,"d":"64..256 step 64","header":"vocab=256 tie=true","layers":"2","memory":0,"name":"small-hybrid","rules":[],"seq":256,"slots":[["attn[heads=4]","fox[heads=4]","gla[heads=4]","mamba2[state=16,head_dim=32]","hyena[state=8]"],["swiglu[inner=128..1024 step 128]"]],"vary":{}}}','{"space":"small-hybrid","method":"random","objectives":[{"objective":"decoder_params","maximise":true},{"objective":"flops","maximise":false}],"front":[{"spec":"d=256 vocab=256 tie=true | hyena[state=8] swiglu[inner=896] attn[heads=4] swiglu[inner=256]","decoder_params":1416960,"total_params":1482496,"active_params":1482496,"flops":825360384,"fixed_state":8192,"tail_state":6144,"dynamic_state":524288,"state":538624,"weights":5929984},{"spec":"d=192 vocab=256 tie=true | hyena[state=8] swiglu[inner=1024] attn[heads=4] swiglu[inner=128]","decoder_params":964416,"total_params":1013568,"active_params":1013568,"flops":568688640,"fixed_state":6144,"tail_state":4608,"dynamic_state":393216,"state":403968,"weights":4054272},{"spec":"d=192 vocab=256 tie=true | mamba2[head_dim=32,state=16] swiglu[inner=384] attn[heads=4] swiglu[inner=256]","decoder_params":749188,"total_params":798340,"active_params":798340,"flops":464453632,"fixed_state":24576,"tail_state":4992,"dynamic_state":393216,"state":422784,"weights":3193360},{"spec":"d=128 vocab=256 tie=true | hyena[state=8] swiglu[inner=512] gla swiglu[inner=896]","decoder_params":696352,"total_params":729120,"active_params":729120,"flops":377028608,"fixed_state":20480,"tail_state":3072,"dynamic_state":0,"state":23552,"weights":2916480}],"evaluated":4,"proposed":20,"cost":{"search_seconds":0.025,"profile_seconds":0.0},"mixers":[],"candidates":{"stored":4,"objectives":["decoder_params","flops"],"gene_type":"int8","genes":"eNpjYGBgYGZiYmRhYWZhY2diBnKZGBkY2QACYwA0","values":"eNpjYCAAGjgcGA4wMMzPu+sw89P6SlNdNdUTB3Zvc4QCAMHZDBQ="},"limits":{},"setting":{"mode":"prefill","seq":256,"batch":1,"device":"cpu","dtype":"float32","threads":1},"profile":null}','{"started":"2026-11-16T09:00:10+00:00","seconds":0.025,"plait":"0.1.0","code":"5633858112c50e04","python":"3.11.7","torch":"2.13.0+cpu","system":"Linux x86_64","cpu":"AMD EPYC","cores":2,"gpu":null}');
INSERT INTO "plait_records" VALUES(2,'5623af95386638bd4e17ed3b346f00ac','train','{"data":{"fingerprint":"1d7b6dd4586c132294be883192e5ab46","name":"t.txt","tokenizer":{"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","tokenizer":"bytes","vocab":256}},"held_out_tokens":131072,"length":{"steps":2},"precision":"fp32","protocol":1,"recipe":{"accumulate":1,"attn_dropout":0.0,"batch":2,"beta1":0.9,"beta2":0.95,"clip":1.0,"dropout":0.0,"eps":1e-08,"floor":0.0,"length":16,"lr":0.002,"mask_share":0.15,"memory":0,"optimizer":"adamw","schedule":"cosine","undecayed":[],"warmup":0.02,"weight_decay":0.1},"seed":0,"spec":"d=16 vocab=256 | attn[heads=2] swiglu[inner=16]"}','{"run":"train-5623af9538","folder":"runs/train-5623af9538","spec":"d=16 vocab=256 | attn[heads=2] swiglu[inner=16]","data":"t.txt","loss":5.451059341430664,"perplexity":233.00486692336614,"bits_per_character":7.864216279473478,"train_loss":5.489721775054932,"steps":2,"skipped":0,"tokens":64,"flops":2457600.0,"seconds":0.09726353299993207,"tokens_per_second":658.0061203415745,"flop_utilisation":0.0006481515652333911,"params":10032,"curve":[[1,5.531453609466553],[2,5.489721775054932]],"held_out_curve":[[1,5.477525624361905],[2,5.451059341430664]]}','{"started":"2026-11-16T09:00:26+00:00","seconds":0.097,"plait":"0.1.0","code":"5633858112c50e04","python":"3.11.7","torch":"2.13.0+cpu","system":"Linux x86_64","cpu":"AMD EPYC","cores":2,"gpu":null}');
CREATE TABLE plait_schema (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "plait_schema" VALUES(1);
CREATE INDEX ix_plait_records_kind ON plait_records (kind);
CREATE INDEX ix_plait_claims_owner ON plait_claims (owner);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('plait_records',2);
COMMIT;
